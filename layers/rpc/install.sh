#!/bin/sh
# Installs ONC RPC for C, or takes it away again:
#
#   layers/rpc/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# Needs a C compiler and libtirpc-dev, without which it installs nothing and says so.
set -eu
cd "$(dirname "$0")/../.."
layer=rpc
. layers/common.sh
begin_install

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
        pc hamlyn-rpc "ONC RPC on Hamlyn, for rpcgen's stubs" '-lhamlynrpc -lpthread' 'hamlyn libtirpc'
        ;;
    uninstall) take_away lib/libhamlynrpc.a lib/pkgconfig/hamlyn-rpc.pc ;;
    *) usage ;;
esac
