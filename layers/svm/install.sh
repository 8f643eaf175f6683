#!/bin/sh
# Installs shared virtual memory for C, or takes it away again:
#
#   layers/svm/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# The release build must be there (or another, in the folder HAMLYN_BUILT).
set -eu
cd "$(dirname "$0")/../.."
layer=svm
. layers/common.sh
begin_install

case ${1-} in
    install)
        library 'Shared virtual memory on Hamlyn' svm
        # The ANL macros: a small library of their own.
        object=$(mktemp -d)
        trap 'rm -rf "$object"' EXIT
        cc -O2 -fPIC -Ilayers/svm/include -c layers/svm/anl/anl.c -o "$object/anl.o"
        ar rcs "$to/lib/libhamlynanl.a" "$object/anl.o"
        install -m 644 layers/svm/anl/anl.h "$to/include/hamlyn-svm/"
        pc hamlyn-anl 'The ANL macros on shared virtual memory' -lhamlynanl hamlyn-svm
        ;;
    uninstall)
        take_away lib/libhamlynsvm.so lib/libhamlynsvm.a lib/pkgconfig/hamlyn-svm.pc \
            lib/libhamlynanl.a lib/pkgconfig/hamlyn-anl.pc
        ;;
    *) usage ;;
esac
