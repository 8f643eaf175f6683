#!/bin/sh
# Installs the C library, or takes it away again: `make install PREFIX=.. DESTDIR=..`.
#
#   capi/install.sh install|uninstall
#
# PREFIX is where the files will be used from, /usr/local unless given; DESTDIR is put before it
# while they are written, for packages. The library must have been built.
set -eu
cd "$(dirname "$0")/.."

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR-}
INCLUDEDIR=${INCLUDEDIR:-$PREFIX/include}
LIBDIR=${LIBDIR:-$PREFIX/lib}
DATADIR=${DATADIR:-$PREFIX/share}
# HAMLYN_PROFILE=dev installs a build of the tests.
PROFILE=${HAMLYN_PROFILE:-release}
[ "$PROFILE" != dev ] || PROFILE=debug
BUILT=${CARGO_TARGET_DIR:-target}/$PROFILE
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# The first number of the shared library's name; capi/build.rs has it too.
SONAME=libhamlyn.so.0
# What `rustc --print native-static-libs` says, but for -lgcc_s, which there is no static one of.
LIBS_PRIVATE='-lgcc_eh -lutil -lrt -lpthread -lm -ldl -lc'

case $PREFIX in
    /*) ;;
    *) echo "PREFIX is '$PREFIX', and must be an absolute path" >&2; exit 1 ;;
esac

files="$INCLUDEDIR/hamlyn.h
$LIBDIR/libhamlyn.so.$VERSION
$LIBDIR/$SONAME
$LIBDIR/libhamlyn.so
$LIBDIR/libhamlyn.a
$LIBDIR/pkgconfig/hamlyn.pc
$DATADIR/hamlyn/valgrind.supp"

# Where no package is made, the system's table of libraries learns of the change.
refresh() {
    [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null 2>&1 && ldconfig
    return 0
}

case ${1-} in
    install)
        for built in libhamlyn_c.so libhamlyn_c.a; do
            [ -e "$BUILT/$built" ] || { echo "$BUILT/$built is not built" >&2; exit 1; }
        done
        install -d "$DESTDIR$INCLUDEDIR" "$DESTDIR$LIBDIR/pkgconfig"
        install -d "$DESTDIR$DATADIR/hamlyn"
        install -m 644 capi/valgrind.supp "$DESTDIR$DATADIR/hamlyn/valgrind.supp"
        install -m 644 capi/include/hamlyn.h "$DESTDIR$INCLUDEDIR/hamlyn.h"
        install -m 755 "$BUILT/libhamlyn_c.so" "$DESTDIR$LIBDIR/libhamlyn.so.$VERSION"
        ln -sf "libhamlyn.so.$VERSION" "$DESTDIR$LIBDIR/$SONAME"
        ln -sf "$SONAME" "$DESTDIR$LIBDIR/libhamlyn.so"
        install -m 644 "$BUILT/libhamlyn_c.a" "$DESTDIR$LIBDIR/libhamlyn.a"
        # Names and lines for a debugger are ten times the library.
        if command -v strip >/dev/null 2>&1; then
            strip --strip-debug "$DESTDIR$LIBDIR/libhamlyn.so.$VERSION" \
                "$DESTDIR$LIBDIR/libhamlyn.a"
        fi
        sed -e "s|@PREFIX@|$PREFIX|" -e "s|@INCLUDEDIR@|$INCLUDEDIR|" -e "s|@LIBDIR@|$LIBDIR|" \
            -e "s|@VERSION@|$VERSION|" -e "s|@LIBS_PRIVATE@|$LIBS_PRIVATE|" capi/hamlyn.pc.in \
            >"$DESTDIR$LIBDIR/pkgconfig/hamlyn.pc"
        chmod 644 "$DESTDIR$LIBDIR/pkgconfig/hamlyn.pc"
        echo "$files" | sed "s|^|   $DESTDIR|"
        refresh
        ;;
    uninstall)
        echo "$files" | while read -r file; do rm -f "$DESTDIR$file"; done
        refresh
        ;;
    *) echo 'install or uninstall?' >&2; exit 1 ;;
esac
