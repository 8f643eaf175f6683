#!/bin/sh
# The C side of VMMC and what is over it, against the dev build:
#
#   layers/vmmc/test.sh [DIR] [HAMLYN]      DIR has libhamlyn_vmmc.so; target/debug unless given. HAMLYN is the command
#
# Each program ends within a minute. Ends with 99 where there is no C compiler.
set -eu
cd "$(dirname "$0")/../.."
built=$(cd "${1:-${CARGO_TARGET_DIR:-target}/debug}" && pwd)
hamlyn=${2:-$built/hamlyn}
command -v cc >/dev/null 2>&1 || exit 99
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HAMLYN_DIR="$work/dir"
mkdir -m 700 "$HAMLYN_DIR"
flags='-O1 -g -Wall -Wextra -Werror -Ilayers/vmmc/include'
libs="-L$built -lhamlyn_vmmc -Wl,-rpath,$built -lm"

# run RANKS PROGRAM [ARGUMENTS]
run() {
    ranks=$1
    shift
    echo "$* with $ranks ranks${NX_UPDATE:+, $NX_UPDATE update}"
    program=$1
    shift
    timeout 60 "$hamlyn" run -n "$ranks" -- "$work/$program" "$@" || { echo "$program with $ranks ranks FAILED" >&2; exit 1; }
}

# shellcheck disable=SC2086
cc $flags -std=c11 layers/vmmc/examples/hello.c -o "$work/hello" $libs
run 2 hello
run 1 hello
for compiler in 'cc -std=gnu11' 'c++ -xc++'; do
    # shellcheck disable=SC2086
    $compiler $flags -c layers/vmmc/tests/c/errors.c -o "$work/errors.o"
    # shellcheck disable=SC2086
    cc "$work/errors.o" -o "$work/errors" $libs
    run 2 errors
done
