#!/bin/sh
# Installs CLAN for C, and the command hamlyn-clan, or takes them away again:
#
#   layers/clan/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# The release build must be there, or the one in HAMLYN_BUILT.
set -eu
cd "$(dirname "$0")/../.."
PREFIX=${PREFIX:-/usr/local}
BUILT=${HAMLYN_BUILT:-${CARGO_TARGET_DIR:-target}/release}
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
to=${DESTDIR-}$PREFIX

case ${1-} in
    install)
        [ -e "$BUILT/libhamlyn_clan.so" ] || { echo "$BUILT/libhamlyn_clan.so is not built" >&2; exit 1; }
        install -d "$to/lib/pkgconfig" "$to/include/hamlyn-clan" "$to/bin"
        install -m 644 layers/clan/include/clan.h "$to/include/hamlyn-clan/"
        install -m 755 "$BUILT/libhamlyn_clan.so" "$to/lib/libhamlynclan.so"
        install -m 644 "$BUILT/libhamlyn_clan.a" "$to/lib/libhamlynclan.a"
        [ ! -e "$BUILT/hamlyn-clan" ] || install -m 755 "$BUILT/hamlyn-clan" "$to/bin/"
        cat >"$to/lib/pkgconfig/hamlyn-clan.pc" <<END
prefix=$PREFIX
Name: hamlyn-clan
Description: CLAN on Hamlyn
Version: $VERSION
Libs: -L\${prefix}/lib -lhamlynclan
Cflags: -I\${prefix}/include/hamlyn-clan
END
        ;;
    uninstall)
        rm -rf "$to/include/hamlyn-clan"
        rm -f "$to/lib/libhamlynclan.so" "$to/lib/libhamlynclan.a" "$to/lib/pkgconfig/hamlyn-clan.pc" "$to/bin/hamlyn-clan"
        ;;
    *)
        sed -n '2,6p' "$0" >&2
        exit 2
        ;;
esac
