#!/bin/sh
# The C side of Fast Messages and what is over it, against the dev build:
#
#   layers/fm/test.sh [DIR]      DIR has libhamlyn_fm.so and the command hamlyn; target/debug unless given
#
# Each program is compiled as C, and, where it is no example, as C++; it runs with the number of nodes that it is
# for, and ends within a minute. Ends with 99 where there is no C compiler.
set -eu
cd "$(dirname "$0")/../.."
layer=fm
. layers/common.sh
begin_test "${1-}"

# compile COMPILER SOURCE PROGRAM
compile() {
    "$1" -Wall -Wextra -Werror -Ilayers/fm/include "$2" -o "$work/$3" -L"$built" -lhamlyn_fm -Wl,-rpath,"$built"
}

# run NODES PROGRAM
run() {
    echo "$2 with $1 nodes"
    timeout 60 "$built/hamlyn" run -n "$1" -- "$work/$2" || { echo "$2 with $1 nodes FAILED" >&2; exit 1; }
}

compile cc layers/fm/examples/ring.c ring
for nodes in 1 2 4; do run "$nodes" ring; done
for compiler in 'cc' 'c++ -xc++'; do
    # shellcheck disable=SC2086
    set -- $compiler
    "$@" -Wall -Wextra -Werror -Ilayers/fm/include -c layers/fm/tests/c/fm1.c -o "$work/fm1.o"
    cc "$work/fm1.o" -o "$work/fm1" -L"$built" -lhamlyn_fm -Wl,-rpath,"$built"
    run 2 fm1
    "$@" -Wall -Wextra -Werror -Ilayers/fm/include -c layers/fm/tests/c/errors.c -o "$work/errors.o"
    cc "$work/errors.o" -o "$work/errors" -L"$built" -lhamlyn_fm -Wl,-rpath,"$built"
    run 1 errors
done
# Without a launcher.
HAMLYN_FM_MEET=somewhere timeout 60 "$work/ring" &
other=$!
HAMLYN_FM_MEET=somewhere timeout 60 "$work/ring"
wait "$other"
# As it is installed: the README's program, and MPI's compiler.
install_here
sed -n '/^```c$/,/^```$/p' layers/fm/README.md | grep -v '^```' >"$work/hello.c"
installed hamlyn-fm "$work/hello.c" hello
run 3 hello
"$work/prefix/bin/hamlynmpicc" layers/fm/mpi/examples/cg.c -o "$work/cg" -lm
run 2 cg
uninstall_here
for more in over mpi; do
    if [ -x layers/fm/$more/test.sh ]; then
        echo "== layers/fm/$more"
        # MPI's also fetches public benchmarks, and takes minutes, with SHORT unset.
        SHORT=${SHORT-1} layers/fm/$more/test.sh "$built" "$built/hamlyn"
    fi
done
