#!/bin/sh
# Installs the C library and the command, or takes them away again: `make install PREFIX=.. DESTDIR=..`.
#
#   capi/install.sh install|uninstall
#
# PREFIX is where the files will be used from, /usr/local unless given; DESTDIR is put before it
# while they are written, for packages. The library must have been built; of the command, its manual
# pages and completions, and the line for systemd-tmpfiles, what was built is installed.
set -eu
cd "$(dirname "$0")/.."

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR-}
INCLUDEDIR=${INCLUDEDIR:-$PREFIX/include}
LIBDIR=${LIBDIR:-$PREFIX/lib}
DATADIR=${DATADIR:-$PREFIX/share}
BINDIR=${BINDIR:-$PREFIX/bin}
MANDIR=${MANDIR:-$DATADIR/man}
TMPFILESDIR=${TMPFILESDIR:-$PREFIX/lib/tmpfiles.d}
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
$INCLUDEDIR/hamlyn.hpp
$LIBDIR/libhamlyn.so.$VERSION
$LIBDIR/$SONAME
$LIBDIR/libhamlyn.so
$LIBDIR/libhamlyn.a
$LIBDIR/pkgconfig/hamlyn.pc
$LIBDIR/cmake/hamlyn/hamlynConfig.cmake
$LIBDIR/cmake/hamlyn/hamlynConfigVersion.cmake
$DATADIR/hamlyn/valgrind.supp
$DATADIR/hamlyn/tsan.supp
$BINDIR/hamlyn
$TMPFILESDIR/hamlyn.conf
$DATADIR/bash-completion/completions/hamlyn
$DATADIR/zsh/site-functions/_hamlyn
$DATADIR/fish/vendor_completions.d/hamlyn.fish"

# Where no package is made, the system's table of libraries learns of the change.
refresh() {
    [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null 2>&1 && ldconfig
    return 0
}

# Whether libraries and headers are below PREFIX, so that the whole can be moved.
is_movable() {
    case $LIBDIR/:$INCLUDEDIR/ in
        */../*) return 1 ;;
        "$PREFIX"/*:"$PREFIX"/*) ;;
        *) return 1 ;;
    esac
}

# PREFIX, seen from a folder of LIBDIR: `../../../`.
up_from() { echo "${LIBDIR#"$PREFIX"}/$1" | sed 's|//*|/|g; s|/[^/][^/]*|../|g'; }

# Where the headers are, seen from LIBDIR/cmake/hamlyn: the way there, or the place itself.
headers_from_cmake() {
    if is_movable; then echo "$(up_from cmake/hamlyn)${INCLUDEDIR#"$PREFIX"/}"; else echo "$INCLUDEDIR"; fi
}

# What pkg-config finds the library by. Below /usr, where the system's own are, nothing is moved, and a
# path with `..` would not be known for one that every compiler looks in.
for_pkg_config() {
    file="$DESTDIR$LIBDIR/pkgconfig/hamlyn.pc"
    prefix=$PREFIX include=$INCLUDEDIR lib=$LIBDIR
    if [ "$PREFIX" != /usr ] && is_movable; then
        up=$(up_from pkgconfig)
        # shellcheck disable=SC2016
        prefix='${pcfiledir}'/${up%/} include='${prefix}'/${INCLUDEDIR#"$PREFIX"/} lib='${prefix}'/${LIBDIR#"$PREFIX"/}
    fi
    sed -e "s|@PREFIX@|$prefix|" -e "s|@INCLUDEDIR@|$include|" -e "s|@LIBDIR@|$lib|" \
        -e "s|@VERSION@|$VERSION|" -e "s|@LIBS_PRIVATE@|$LIBS_PRIVATE|" capi/hamlyn.pc.in >"$file"
    chmod 644 "$file"
}

# What CMake finds the library by.
for_cmake() {
    install -d "$DESTDIR$LIBDIR/cmake/hamlyn"
    for name in hamlynConfig hamlynConfigVersion; do
        file="$DESTDIR$LIBDIR/cmake/hamlyn/$name.cmake"
        # The libraries as CMake lists them.
        sed -e "s|@INCLUDEDIR@|$(headers_from_cmake)|" -e "s|@VERSION@|$VERSION|" \
            -e "s|@SONAME@|$SONAME|" -e "s|@VERSION_MAJOR@|${VERSION%%.*}|" \
            -e "s|@VERSION_MINOR@|$(echo "$VERSION" | cut -d. -f2)|" \
            -e "s|@LIBS@|$(echo "$LIBS_PRIVATE" | tr ' ' ';')|" "capi/$name.cmake.in" >"$file"
        chmod 644 "$file"
    done
}

# The command writes its own pages, completions and lines.
command_too() {
    install -d "$DESTDIR$BINDIR" "$DESTDIR$MANDIR/man1" "$DESTDIR$TMPFILESDIR"
    install -m 755 "$BUILT/hamlyn" "$DESTDIR$BINDIR/hamlyn"
    pages=$(mktemp -d)
    "$BUILT/hamlyn" man "$pages"
    install -m 644 "$pages"/*.1 "$DESTDIR$MANDIR/man1/"
    rm -rf "$pages"
    for shell in bash zsh fish; do
        case $shell in
            bash) file=$DATADIR/bash-completion/completions/hamlyn ;;
            zsh) file=$DATADIR/zsh/site-functions/_hamlyn ;;
            fish) file=$DATADIR/fish/vendor_completions.d/hamlyn.fish ;;
        esac
        install -d "$DESTDIR$(dirname "$file")"
        "$BUILT/hamlyn" completions "$shell" >"$DESTDIR$file"
        chmod 644 "$DESTDIR$file"
    done
    # The place of the one who installs is of no interest here.
    env -u HAMLYN_SHARED_DIR "$BUILT/hamlyn" setup --tmpfiles >"$DESTDIR$TMPFILESDIR/hamlyn.conf"
    chmod 644 "$DESTDIR$TMPFILESDIR/hamlyn.conf"
}

case ${1-} in
    install)
        for built in libhamlyn_c.so libhamlyn_c.a; do
            [ -e "$BUILT/$built" ] || { echo "$BUILT/$built is not built" >&2; exit 1; }
        done
        install -d "$DESTDIR$INCLUDEDIR" "$DESTDIR$LIBDIR/pkgconfig"
        install -d "$DESTDIR$DATADIR/hamlyn"
        install -m 644 capi/valgrind.supp "$DESTDIR$DATADIR/hamlyn/valgrind.supp"
        install -m 644 capi/tsan.supp "$DESTDIR$DATADIR/hamlyn/tsan.supp"
        install -m 644 capi/include/hamlyn.h "$DESTDIR$INCLUDEDIR/hamlyn.h"
        install -m 644 capi/include/hamlyn.hpp "$DESTDIR$INCLUDEDIR/hamlyn.hpp"
        install -m 755 "$BUILT/libhamlyn_c.so" "$DESTDIR$LIBDIR/libhamlyn.so.$VERSION"
        ln -sf "libhamlyn.so.$VERSION" "$DESTDIR$LIBDIR/$SONAME"
        ln -sf "$SONAME" "$DESTDIR$LIBDIR/libhamlyn.so"
        install -m 644 "$BUILT/libhamlyn_c.a" "$DESTDIR$LIBDIR/libhamlyn.a"
        # Names and lines for a debugger are ten times the library.
        if command -v strip >/dev/null 2>&1; then
            strip --strip-debug "$DESTDIR$LIBDIR/libhamlyn.so.$VERSION" \
                "$DESTDIR$LIBDIR/libhamlyn.a"
        fi
        for_pkg_config
        for_cmake
        [ ! -x "$BUILT/hamlyn" ] || command_too
        echo "$files" | while read -r file; do
            [ ! -e "$DESTDIR$file" ] || echo "   $DESTDIR$file"
        done
        refresh
        ;;
    uninstall)
        echo "$files" | while read -r file; do rm -f "$DESTDIR$file"; done
        rm -f "$DESTDIR$MANDIR"/man1/hamlyn.1 "$DESTDIR$MANDIR"/man1/hamlyn-*.1
        refresh
        ;;
    *) echo 'install or uninstall?' >&2; exit 1 ;;
esac
