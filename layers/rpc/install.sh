#!/bin/sh
# Installs ONC RPC for C, or takes it away again:
#
#   layers/rpc/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# Needs a C compiler and libtirpc-dev, without which it installs nothing and says so.
set -eu
cd "$(dirname "$0")/../.."
PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR-}
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
to=$DESTDIR$PREFIX

case ${1-} in
    install)
        if ! command -v cc >/dev/null 2>&1 || ! flags=$(pkg-config --cflags libtirpc 2>/dev/null); then
            echo 'no C compiler or no libtirpc-dev: ONC RPC is left out'
            exit 0
        fi
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        for name in common bounds client server; do
            # shellcheck disable=SC2086
            cc -std=gnu11 -O2 -fPIC $flags -Icapi/include -c layers/rpc/c/$name.c -o "$work/$name.o"
        done
        install -d "$to/lib/pkgconfig" "$to/include/hamlyn-rpc"
        rm -f "$to/lib/libhamlynrpc.a"
        ar rcs "$to/lib/libhamlynrpc.a" "$work"/*.o
        install -m 644 layers/rpc/include/hamlyn_rpc.h "$to/include/hamlyn-rpc/"
        cat >"$to/lib/pkgconfig/hamlyn-rpc.pc" <<EOF
prefix=$PREFIX
Name: hamlyn-rpc
Description: ONC RPC on Hamlyn, for rpcgen's stubs
Version: $VERSION
Requires: hamlyn libtirpc
Libs: -L\${prefix}/lib -lhamlynrpc -lpthread
Cflags: -I\${prefix}/include/hamlyn-rpc
EOF
        ;;
    uninstall)
        rm -rf "$to/include/hamlyn-rpc"
        rm -f "$to/lib/libhamlynrpc.a" "$to/lib/pkgconfig/hamlyn-rpc.pc"
        ;;
    *)
        sed -n '2,6p' "$0" >&2
        exit 2
        ;;
esac
