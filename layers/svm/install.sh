#!/bin/sh
# Installs shared virtual memory for C, or takes it away again:
#
#   layers/svm/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# The release build must be there (or another, in the folder HAMLYN_SVM_BUILT).
set -eu
cd "$(dirname "$0")/../.."
PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR-}
BUILT=${HAMLYN_SVM_BUILT:-${CARGO_TARGET_DIR:-target}/release}
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
to=$DESTDIR$PREFIX

case ${1-} in
    install)
        [ -e "$BUILT/libhamlyn_svm.so" ] || { echo "$BUILT/libhamlyn_svm.so is not built" >&2; exit 1; }
        install -d "$to/lib/pkgconfig" "$to/include/hamlyn-svm"
        install -m 644 layers/svm/include/svm.h "$to/include/hamlyn-svm/"
        install -m 755 "$BUILT/libhamlyn_svm.so" "$to/lib/libhamlynsvm.so"
        install -m 644 "$BUILT/libhamlyn_svm.a" "$to/lib/libhamlynsvm.a"
        printf 'prefix=%s\nName: hamlyn-svm\nDescription: Shared virtual memory on Hamlyn\nVersion: %s\nLibs: -L${prefix}/lib -lhamlynsvm\nCflags: -I${prefix}/include/hamlyn-svm\n' \
            "$PREFIX" "$VERSION" >"$to/lib/pkgconfig/hamlyn-svm.pc"
        # The ANL macros: a small library of their own.
        object=$(mktemp -d)
        trap 'rm -rf "$object"' EXIT
        cc -O2 -fPIC -Ilayers/svm/include -c layers/svm/anl/anl.c -o "$object/anl.o"
        ar rcs "$to/lib/libhamlynanl.a" "$object/anl.o"
        install -m 644 layers/svm/anl/anl.h "$to/include/hamlyn-svm/"
        printf 'prefix=%s\nName: hamlyn-anl\nDescription: The ANL macros on shared virtual memory\nVersion: %s\nRequires: hamlyn-svm\nLibs: -L${prefix}/lib -lhamlynanl\nCflags: -I${prefix}/include/hamlyn-svm\n' \
            "$PREFIX" "$VERSION" >"$to/lib/pkgconfig/hamlyn-anl.pc"
        ;;
    uninstall)
        rm -rf "$to/include/hamlyn-svm"
        rm -f "$to/lib/libhamlynsvm.so" "$to/lib/libhamlynsvm.a" "$to/lib/pkgconfig/hamlyn-svm.pc" \
            "$to/lib/libhamlynanl.a" "$to/lib/pkgconfig/hamlyn-anl.pc"
        ;;
    *)
        sed -n '2,6p' "$0" >&2
        exit 2
        ;;
esac
