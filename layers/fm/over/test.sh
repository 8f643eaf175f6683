#!/bin/sh
# Compiles and runs the tests and examples of the libraries over Fast Messages.
#   test.sh LIBDIR HAMLYN      LIBDIR has libhamlyn_fm.so; HAMLYN is the command
set -eu
libdir=$(realpath "$1")
hamlyn=$(realpath "$2")
here=$(dirname "$(realpath "$0")")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
: "${CC:=cc}" "${CXX:=c++}" "${CFLAGS:=-O2 -g}"
warnings="-Wall -Wextra -Werror"
includes="-I$here/../include -I$here"

for name in over fm_sockets shmem ga; do
    $CC -std=c11 $CFLAGS $warnings $includes -c "$here/$name.c" -o "$out/$name.o"
done
# build COMPILER NAME SOURCE
build() {
    $1 $CFLAGS $warnings $includes "$here/$3" "$out/over.o" "$out/fm_sockets.o" "$out/shmem.o" "$out/ga.o" \
        -o "$out/$2" -L"$libdir" -lhamlyn_fm -Wl,-rpath,"$libdir"
}
# run NODES NAME [ARGUMENT]
run() {
    nodes=$1
    shift
    echo "$1, $nodes nodes"
    (cd "$out" && timeout 300 "$hamlyn" run -n "$nodes" -- "./$@" 2>errors) || {
        echo "FAILED: $*, $nodes nodes" >&2
        cat "$out/errors" >&2
        exit 1
    }
}

for name in sockets shmem ga hostile death stalls acks misuse; do
    build "$CC -std=c11" "test_$name" "tests/$name.c"
done
build "$CXX -std=c++17" test_headers tests/headers.cpp
for name in copy histogram transpose; do
    build "$CC -std=c11" "$name" "examples/$name.c"
done
for nodes in 2 4 8; do
    for name in test_sockets test_shmem test_ga test_death test_headers copy histogram transpose; do
        run "$nodes" "$name"
    done
done
# Alone; and the liar needs two others.
for name in test_sockets test_shmem test_ga test_headers copy histogram transpose; do
    run 1 "$name"
done
for nodes in 3 4 8; do
    run "$nodes" test_hostile
done
run 1 test_misuse
run 2 test_stalls
run 3 test_acks
echo "all passed"
