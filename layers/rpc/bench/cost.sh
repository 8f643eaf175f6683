#!/bin/sh
# Compiles and runs cost.c against the release build:
#
#   layers/rpc/bench/cost.sh [DIR]      DIR has libhamlyn_c.so; target/release unless given
set -eu
cd "$(dirname "$0")/../../.."
built=$(cd "${1:-${CARGO_TARGET_DIR:-target}/release}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$built/libhamlyn_c.so" "$work/libhamlyn.so"
ln -s libhamlyn.so "$work/libhamlyn.so.0"
cp layers/rpc/tests/c/probe.x "$work"
(
    cd "$work"
    rpcgen -C -M -h -o probe.h probe.x
    rpcgen -C -M -c -o probe_xdr.c probe.x
    rpcgen -C -M -l -o probe_clnt.c probe.x
    rpcgen -C -M -m -o probe_svc.c probe.x
)
# shellcheck disable=SC2046
cc -std=gnu11 -O2 -w -I"$work" -Ilayers/rpc/include -Icapi/include $(pkg-config --cflags libtirpc) \
    layers/rpc/bench/cost.c layers/rpc/c/*.c "$work"/probe_*.c -o "$work/cost" \
    -L"$work" -lhamlyn -Wl,-rpath,"$work" $(pkg-config --libs libtirpc) -lpthread
mkdir -m 700 "$work/dir"
HAMLYN_DIR="$work/dir" "$work/cost"
