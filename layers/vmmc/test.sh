#!/bin/sh
# The C side of VMMC and what is over it, against the dev build:
#
#   layers/vmmc/test.sh [DIR] [HAMLYN]      DIR has libhamlyn_vmmc.so; target/debug unless given. HAMLYN is the command
#
# Each program ends within a minute. Ends with 99 where there is no C compiler.
set -eu
cd "$(dirname "$0")/../.."
layer=vmmc
. layers/common.sh
begin_test "${1-}"
hamlyn=${2:-$built/hamlyn}
flags='-O1 -g -Wall -Wextra -Werror -Ilayers/vmmc/include -Ilayers/vmmc/nx -Ilayers/vmmc/bsp'
libs="-L$built -lhamlyn_vmmc -Wl,-rpath,$built -lm"

# run RANKS PROGRAM [ARGUMENTS]
run() {
    ranks=$1
    program=$2
    shift 2
    echo "$program $* with $ranks ranks${UPDATE:+, $UPDATE update}"
    NX_UPDATE=${UPDATE-} BSP_UPDATE=${UPDATE-} timeout 60 "$hamlyn" run -n "$ranks" -- "$work/$program" "$@" || {
        echo "$program $* with $ranks ranks${UPDATE:+, $UPDATE update} FAILED" >&2
        exit 1
    }
}

# says STATUS WORDS RANKS PROGRAM [ARGUMENTS]: its last line has the words. A rank may end with STATUS: its shell hides
# that from `hamlyn run`, which would end the others.
says() {
    status=$1
    words=$2
    ranks=$3
    program=$4
    shift 4
    echo "$program $* with $ranks ranks${UPDATE:+, $UPDATE update}"
    # shellcheck disable=SC2016
    STREAM_UPDATE=${UPDATE-} timeout 60 "$hamlyn" run -n "$ranks" -- sh -c \
        'status=$1; shift; "$@" || [ $? = "$status" ]' sh "$status" "$work/$program" "$@" >"$work/said" &&
        tail -n 1 "$work/said" | grep -q " checked=yes .*$words" || {
        echo "$program $* with $ranks ranks${UPDATE:+, $UPDATE update} FAILED: not $words" >&2
        cat "$work/said" >&2
        exit 1
    }
}

# compile COMPILER SOURCE PROGRAM [OTHER SOURCES]: the compiler is for the first source alone
compile() {
    compiler=$1
    source=$2
    program=$3
    shift 3
    # shellcheck disable=SC2086
    $compiler $flags -c "$source" -o "$work/$program.o"
    # shellcheck disable=SC2086
    cc -std=gnu11 $flags "$work/$program.o" "$@" -o "$work/$program" $libs
}

compile 'cc -std=c11' layers/vmmc/examples/hello.c hello
run 2 hello
run 1 hello
pairs=layers/vmmc/pairs/pairs.c
nx="layers/vmmc/nx/nx.c layers/vmmc/nx/global.c layers/match/match.c"
bsp="layers/vmmc/bsp/bsp.c $pairs"
for compiler in 'cc -std=gnu11' 'c++ -xc++'; do
    compile "$compiler" layers/vmmc/tests/c/errors.c errors
    run 2 errors
    # shellcheck disable=SC2086
    compile "$compiler" layers/vmmc/tests/c/nx.c nx $nx $pairs
    # shellcheck disable=SC2086
    compile "$compiler" layers/vmmc/tests/c/bsp.c bsp $bsp
    run 2 nx
    run 2 bsp
done
run 1 nx
run 1 bsp
# With little memory for messages that no receive awaits.
# shellcheck disable=SC2086,SC2030
(flags="$flags -DNX_HELD=65536" && compile 'cc -std=gnu11' layers/vmmc/tests/c/nx.c nx_held $nx $pairs)
for ranks in 1 2 3; do run $ranks nx_held; done
# As programs were written for the Paragon.
# shellcheck disable=SC2086
compile 'cc -std=gnu89 -w' layers/vmmc/tests/c/old.c old $nx $pairs
for ranks in 1 4; do run $ranks old; done
# shellcheck disable=SC2086
compile 'cc -std=gnu11' layers/vmmc/tests/c/death.c death $nx $pairs
# shellcheck disable=SC2086
compile 'cc -std=gnu11' layers/vmmc/tests/c/nx_wrong.c nx_wrong $nx $pairs
# A node that cannot send leaves after 2 s in place of 10.
# shellcheck disable=SC2086,SC2030,SC2031
(flags="$flags -DNX_EXIT_S=2" && compile 'cc -std=gnu11' layers/vmmc/tests/c/hostile.c hostile $bsp $nx)
# shellcheck disable=SC2086
compile 'cc -std=gnu11' layers/vmmc/tests/c/bsp_wrong.c bsp_wrong $bsp
for program in radix grid nbody; do
    # shellcheck disable=SC2086
    compile 'cc -std=gnu11' layers/vmmc/programs/$program.c $program $nx $pairs
done
streams="layers/vmmc/programs/streams.c $pairs"
# shellcheck disable=SC2086
compile 'cc -std=gnu11' layers/vmmc/programs/dfs.c dfs $streams
can_render=
if printf '#include <png.h>\n' | cc -E - >/dev/null 2>&1; then
    can_render=1
    # shellcheck disable=SC2086
    compile 'cc -std=gnu11' layers/vmmc/programs/render.c render $streams -lpng
else
    echo 'SKIPPED: render, which needs libpng (libpng-dev)' >&2
fi
# shellcheck disable=SC2086
compile 'cc -std=gnu11' layers/vmmc/programs/probe.c probe $bsp
for UPDATE in deliberate automatic; do
    run 2 probe 20
    run 4 nx
    run 3 bsp
    run 4 bsp 2
    for ranks in 2 4; do
        run $ranks radix 16384 $UPDATE
        run $ranks grid 66 50
        run $ranks nbody 256 3
        run $ranks death near
        run $ranks death far
        [ -z "$can_render" ] || says 0 'lost_workers=0 again=0' $ranks render 33 20 17 48 --png "$work/image.png"
    done
    # Files larger than a node's cache, all of them in the caches of all.
    says 0 'remote=[1-9][0-9]* disk=0 lost=0' 4 dfs 2 80 64 2
done
UPDATE=uncombined
says 0 'remote=[1-9][0-9]* disk=0 lost=0' 2 dfs 2 10 16 1
unset UPDATE
says 0 'disk=[1-9][0-9]* lost=0' 2 dfs 2 10 8 1
says 0 'local=80 remote=0 disk=80 lost=0' 1 dfs 1 80 64 1
says 137 'remote=[1-9][0-9]* disk=0 lost=[1-9]' 4 dfs 2 80 64 2 --die 2
if [ -n "$can_render" ]; then
    says 0 'lost_workers=0 again=0' 1 render 33 20 17 48
    says 137 'lost_workers=1 again=1' 4 render 33 20 17 96 --die 2:1
    says 137 'lost_workers=1 again=1' 2 render 33 20 17 48 --die 1:2
    says 1 'lost_workers=1 again=1' 2 render 33 20 17 48 --lie 1:2
fi
# fails SENTENCE PROGRAM [ARGUMENTS]: two ranks of it end with 1, and one says the sentence
fails() {
    sentence=$1
    program=$2
    shift 2
    echo "$program $*"
    status=0
    timeout 60 "$hamlyn" run -n 2 -- "$work/$program" "$@" 2>"$work/said" || status=$?
    if [ $status != 1 ] || ! grep -q "^$sentence" "$work/said"; then
        echo "$program $* FAILED: status $status, not \"$sentence\"" >&2
        cat "$work/said" >&2
        exit 1
    fi
}
for seed in 1 2 3 4 5 6; do
    run 2 hostile nx $seed
    fails 'bsp_[a-z_/]*: .* (process 0)$' hostile bsp $seed
done
fails 'bsp_sync: process 1 answers more than it was asked' hostile bsp answers
run 2 hostile leave
run 2 hostile stall
for program in bsp_wrong nx_wrong; do
    "$work/$program" >"$work/rules"
    while read -r rule sentence; do fails "$sentence" $program "$rule"; done <"$work/rules"
done

# The paper's experiments, in short: that each of them runs.
if [ -z "$can_render" ] || [ ! -x "$built/hamlyn-vmmc" ]; then
    echo 'SKIPPED: hamlyn-vmmc paper, which needs libpng and the command hamlyn-vmmc (feature perf)' >&2
else
    echo 'hamlyn-vmmc paper, in short'
    "$built/hamlyn-vmmc" paper --short --ranks 4 --hamlyn "$hamlyn" --out "$work/rows.jsonl" --chart "$work/rows.svg" \
        >"$work/said" 2>&1 && grep -q '"Figure 4".*Radix-VMMC' "$work/rows.jsonl" && grep -q '</svg>' "$work/rows.svg" || {
        echo 'hamlyn-vmmc paper FAILED' >&2
        cat "$work/said" >&2
        exit 1
    }
fi

# As it is installed.
install_here
installed hamlyn-vmmc layers/vmmc/examples/hello.c hello
run 2 hello
installed hamlyn-nx layers/vmmc/programs/grid.c grid
run 2 grid 34 10
installed hamlyn-bsp layers/vmmc/tests/c/bsp.c bsp
run 2 bsp
uninstall_here
echo 'all passed'
