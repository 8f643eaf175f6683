#!/bin/sh
# rpcgen's stubs over Hamlyn, against the dev build, as it is installed:
#
#   layers/rpc/test.sh [DIR]      DIR has libhamlyn_c.so and examples/sum; target/debug unless given
#
# Each program ends within a minute. Ends with 99 where there is no C compiler, no rpcgen or no libtirpc-dev.
set -eu
cd "$(dirname "$0")/../.."
. scripts/common.sh
built=$(cd "${1:-${CARGO_TARGET_DIR:-target}/debug}" && pwd)
for tool in cc pkg-config rpcgen; do
    have $tool || { loud "ONC RPC SKIPPED: there is no $tool"; exit 99; }
done
pkg-config --exists libtirpc || { loud 'ONC RPC SKIPPED: there is no libtirpc-dev'; exit 99; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exit_on_signals
export HAMLYN_DIR="$work/dir"
mkdir -m 700 "$HAMLYN_DIR"
src=$PWD/layers/rpc

# As they are installed: the C library's package file is made here, since `make install` needs the release build.
export PREFIX="$work/prefix"
"$src/install.sh" install
ln -s "$built/libhamlyn_c.so" "$PREFIX/lib/libhamlyn.so"
ln -s libhamlyn.so "$PREFIX/lib/libhamlyn.so.0"
printf 'Name: hamlyn\nDescription: Hamlyn\nVersion: 0\nLibs: -L%s/lib -lhamlyn -Wl,-rpath,%s/lib\nCflags: -I%s/capi/include\n' \
    "$PREFIX" "$PREFIX" "$PWD" >"$PREFIX/lib/pkgconfig/hamlyn.pc"
export PKG_CONFIG_PATH="$PREFIX/lib/pkgconfig"
flags="-g -O1 -Wall -Wextra -Werror $(pkg-config --cflags hamlyn-rpc) -I$work"
libs=$(pkg-config --libs hamlyn-rpc)

# The library itself, without warnings.
for name in common bounds client server; do
    # shellcheck disable=SC2086
    cc -std=gnu11 $flags -fsyntax-only "$src/c/$name.c"
done

# stubs FILE.x [RPCGEN'S FLAGS]: as rpcgen writes them, whose warnings are its own
stubs() {
    name=$(basename "$1" .x)
    cp "$1" "$work"
    shift
    for part in h:.h c:_xdr.c l:_clnt.c m:_svc.c; do
        (cd "$work" && rpcgen -C "$@" "-${part%%:*}" -o "$name${part#*:}" "$name.x")
    done
    for part in xdr clnt svc; do
        # shellcheck disable=SC2086
        cc -std=gnu11 $flags -w -c "$work/${name}_$part.c" -o "$work/${name}_$part.o"
    done
}

# program COMPILER SOURCE PROGRAM STUBS ..
program() {
    compiler=$1
    source=$2
    made=$3
    shift 3
    objects=$(for part; do echo "$work/$part.o"; done)
    # shellcheck disable=SC2086
    $compiler $flags -c "$source" -o "$work/$made.main.o"
    # shellcheck disable=SC2086
    cc "$work/$made.main.o" $objects -o "$work/$made" $libs
}

stubs "$src/examples/sum.x"
stubs "$src/tests/c/probe.x" -M
program 'cc -std=gnu11' "$src/examples/server.c" server sum_svc sum_xdr
program 'cc -std=gnu11' "$src/examples/client.c" client sum_clnt sum_xdr
program 'cc -std=gnu11' "$src/tests/c/probe_server.c" probe_server probe_svc probe_xdr
program 'cc -std=gnu11' "$src/tests/c/calls.c" calls probe_clnt probe_xdr
program 'cc -std=gnu11' "$src/tests/c/hostile.c" hostile probe_clnt probe_xdr
program 'cc -std=gnu11' "$src/tests/c/users.c" users probe_clnt probe_xdr
if have c++; then
    echo '#include <hamlyn_rpc.h>
int main(int argc, char **) { return argc > 1 && svc_hamlyn_run(svc_hamlyn_create("none", 0, 0)); }' >"$work/header.cc"
    program 'c++ -xc++' "$work/header.cc" header
    "$work/header"
fi

for program in calls hostile; do
    echo "$program"
    timeout 60 "$work/$program" "$work/probe_server"
done
user=$(id -u)
if [ "$user" = 0 ]; then
    echo users
    chmod 755 "$work"
    mkdir -m 1777 "$work/shared"
    mkdir -m 700 "$work/nobody"
    chown 65534:65534 "$work/nobody"
    HAMLYN_SHARED_DIR="$work/shared" timeout 60 "$work/users" "$work/probe_server" "$work/nobody"
else
    loud 'ONC RPC between two users SKIPPED: only root can become another'
fi

# Each end in both languages.
for server in server "$built/examples/sum serve"; do
    case $server in server) server="$work/server" ;; esac
    # shellcheck disable=SC2086
    timeout 60 $server sum &
    for client in "$work/client" "$built/examples/sum call"; do
        echo "$(basename "$client") of $(basename "$server")"
        # shellcheck disable=SC2086
        got=$(timeout 60 $client sum 40 -1 3)
        [ "$got" = "42, asked by user $user" ] || { echo "answered: $got" >&2; exit 1; }
    done
    # shellcheck disable=SC2086
    timeout 60 $client sum stop
    wait $!
done

"$src/install.sh" uninstall
rm "$PREFIX"/lib/libhamlyn.so* "$PREFIX/lib/pkgconfig/hamlyn.pc"
[ -z "$(find "$PREFIX" -type f)" ] || { echo "uninstall leaves $(find "$PREFIX" -type f)" >&2; exit 1; }
echo 'all passed'
