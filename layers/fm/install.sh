#!/bin/sh
# Installs Fast Messages, what is over it, and the command hamlyn-fm, or takes them away again:
#
#   layers/fm/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# The release build must be there, or the one in HAMLYN_BUILT. Without a C compiler, MPI and the libraries over Fast
# Messages are left out.
set -eu
cd "$(dirname "$0")/../.."
layer=fm
. layers/common.sh
begin_install
over='fm_sockets shmem ga'

case ${1-} in
    install)
        library 'Fast Messages on Hamlyn' fm fm1
        [ ! -e "$BUILT/hamlyn-fm" ] || install -m 755 "$BUILT/hamlyn-fm" "$to/bin/"
        if ! command -v cc >/dev/null 2>&1; then
            echo 'no C compiler: MPI, sockets, shmem and global arrays over Fast Messages are left out'
            exit 0
        fi
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        for source in layers/fm/over/*.c; do
            cc -O2 -fPIC -Ilayers/fm/include -c "$source" -o "$work/$(basename "$source" .c).o"
        done
        ar rcs "$to/lib/libhamlynfmover.a" "$work"/*.o
        for name in $over; do install -m 644 "layers/fm/over/$name.h" "$to/include/hamlyn-fm/"; done
        pc hamlyn-fm-over 'Sockets, shmem and global arrays over Fast Messages' '-lhamlynfmover -lhamlynfm'
        make --no-print-directory -s -C layers/fm/mpi install BUILD="$work/mpi" FMLIB="$to/lib" \
            PREFIX="$PREFIX" DESTDIR="$DESTDIR"
        sed -i "s|-L$to/lib|-L$PREFIX/lib|" "$to/lib/pkgconfig/hamlyn-mpi.pc"
        ;;
    uninstall)
        take_away lib/libhamlynfm.so lib/libhamlynfm.a lib/libhamlynfmover.a lib/libhamlynmpi.so lib/libhamlynmpi.a \
            lib/pkgconfig/hamlyn-fm.pc lib/pkgconfig/hamlyn-fm-over.pc lib/pkgconfig/hamlyn-mpi.pc \
            bin/hamlyn-fm bin/hamlynmpicc bin/hamlynmpicxx
        rm -rf "$to/include/hamlyn-mpi"
        ;;
    *) usage ;;
esac
