#!/bin/sh
# Installs Fast Messages, what is over it, and the command hamlyn-fm, or takes them away again:
#
#   layers/fm/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# The release build must be there. Without a C compiler, MPI and the libraries over Fast Messages are left out.
set -eu
cd "$(dirname "$0")/../.."
PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR-}
PROFILE=${HAMLYN_PROFILE:-release}
[ "$PROFILE" != dev ] || PROFILE=debug
BUILT=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/$PROFILE
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
to=$DESTDIR$PREFIX
headers='fm fm1'
over='fm_sockets shmem ga'

# pc NAME DESCRIPTION LIBRARIES
pc() {
    printf 'prefix=%s\nName: %s\nDescription: %s\nVersion: %s\nLibs: -L${prefix}/lib %s\nCflags: -I${prefix}/include/hamlyn-fm\n' \
        "$PREFIX" "$1" "$2" "$VERSION" "$3" >"$to/lib/pkgconfig/$1.pc"
}

case ${1-} in
    install)
        [ -e "$BUILT/libhamlyn_fm.so" ] || { echo "$BUILT/libhamlyn_fm.so is not built" >&2; exit 1; }
        install -d "$to/lib/pkgconfig" "$to/include/hamlyn-fm" "$to/bin"
        for name in $headers; do install -m 644 "layers/fm/include/$name.h" "$to/include/hamlyn-fm/"; done
        install -m 755 "$BUILT/libhamlyn_fm.so" "$to/lib/libhamlynfm.so"
        install -m 644 "$BUILT/libhamlyn_fm.a" "$to/lib/libhamlynfm.a"
        [ ! -e "$BUILT/hamlyn-fm" ] || install -m 755 "$BUILT/hamlyn-fm" "$to/bin/"
        pc hamlyn-fm 'Fast Messages on Hamlyn' -lhamlynfm
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
        rm -rf "$to/include/hamlyn-fm" "$to/include/hamlyn-mpi"
        for file in lib/libhamlynfm.so lib/libhamlynfm.a lib/libhamlynfmover.a lib/libhamlynmpi.so lib/libhamlynmpi.a \
            lib/pkgconfig/hamlyn-fm.pc lib/pkgconfig/hamlyn-fm-over.pc lib/pkgconfig/hamlyn-mpi.pc \
            bin/hamlyn-fm bin/hamlynmpicc bin/hamlynmpicxx; do
            rm -f "$to/$file"
        done
        ;;
    *)
        sed -n '2,6p' "$0" >&2
        exit 2
        ;;
esac
