#!/bin/sh
# Compiles MPI and its programs, and runs all with 2, 4 and 8 ranks. Fails when anything does.
#
#   layers/fm/mpi/test.sh LIBRARY-FOLDER HAMLYN [RANKS]
#
# LIBRARY-FOLDER has libhamlyn_fm.so, HAMLYN is the command; RANKS: '2 4 8' unless given. A public benchmark is
# compiled unchanged: NetPIPE, from Debian's archive; and, where OSU is set, the OSU micro-benchmarks in that folder.
# What cannot be had is SKIPPED, and says so. SHORT=1 leaves both out.
set -eu
[ $# -ge 2 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
FMLIB=$(cd "$1" && pwd)
hamlyn=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
ranks=${3:-2 4 8}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
HAMLYN_MPI_BUILD=$work/lib
HAMLYN_FM_LIB=$FMLIB
export HAMLYN_MPI_BUILD HAMLYN_FM_LIB
unset HAMLYN_MPI_STATS HAMLYN_MPI_EXTRACT_ALL HAMLYN_MPI_EAGER
failed=0

# Runs a program; its output is shown when it fails, and in the file $work/out.
check() {
    name=$1
    shift
    if timeout 300 "$@" >"$work/out" 2>&1; then
        echo "ok      $name"
    else
        echo "FAILED  $name: status $?"
        tail -n 30 "$work/out"
        failed=1
    fi
}
# The words behind the number of ranks are the command.
job() {
    n=$1
    shift
    check "$(basename "$1") $(echo "$@" | cut -d' ' -f2- -s), $n ranks" "$hamlyn" run -n "$n" -- "$@"
}
compile() {
    "$here/hamlynmpicc" -std=c11 -O2 -g -Wall -Wextra -Werror -D_GNU_SOURCE -I"$here/../include" "$1" -o "$work/$2" -lm
}

match=$here/../../match
cc -std=gnu11 -O1 -g -Wall -Wextra -Werror "$match/test.c" "$match/match.c" -o "$work/match"
check 'match' "$work/match"
make -s -C "$here" BUILD="$work/lib" FMLIB="$FMLIB"
for program in mpi_test cg sort stream; do
    compile "$here/examples/$program.c" $program
done
for program in death hostile misuse intruder; do
    compile "$here/tests/$program.c" $program
done
printf '#include <mpi.h>\nint main(int n, char **v) { return MPI_Init(&n, &v) || MPI_Finalize(); }\n' >"$work/small.cpp"
"$here/hamlynmpicxx" -std=c++11 -Wall -Wextra -Werror "$work/small.cpp" -o "$work/small"

check 'mpi_test, alone' "$work/mpi_test"
for n in $ranks; do
    job "$n" "$work/mpi_test"
    job "$n" "$work/cg" 96
    job "$n" "$work/cg" 37
    job "$n" "$work/sort" 50000
    job "$n" "$work/small"
    job "$n" "$work/death"
    job "$n" "$work/misuse"
    job "$n" "$work/misuse" small
    job "$n" "$work/intruder"
done
# Of 4.8 MB that a rank forges, its window and as much again are held.
HAMLYN_MPI_STATS=1 "$hamlyn" run -n 2 -- "$work/intruder" >"$work/held" 2>&1 || { cat "$work/held" >&2; exit 1; }
most=$(sed -n 's/.*at most \([0-9]*\) held.*/\1/p' "$work/held" | sort -n | tail -n 1)
[ "${most:-0}" -gt 1000000 ] && [ "$most" -le 2097152 ] || { echo "intruder: at most $most bytes held" >&2; exit 1; }
echo "ok      intruder, at most $most bytes held"
# All messages by asking; longer ones without; everything extracted at once.
for setting in HAMLYN_MPI_EAGER=0 HAMLYN_MPI_EAGER=262144 HAMLYN_MPI_EXTRACT_ALL=1; do
    check "mpi_test, 3 ranks, $setting" env $setting "$hamlyn" run -n 3 -- "$work/mpi_test"
done
for seed in 1 2 3; do
    job 2 "$work/hostile" $seed
done

# Flow control by the receiver: few messages are copied once more.
unexpected() {
    sed -n 's/^rank 1: .* unexpected (copied once more) \([0-9]*\),.*/\1/p' "$work/out"
}
check 'stream' env HAMLYN_MPI_STATS=1 "$hamlyn" run -n 2 -- "$work/stream"
few=$(unexpected)
check 'stream, extracting all' env HAMLYN_MPI_STATS=1 HAMLYN_MPI_EXTRACT_ALL=1 "$hamlyn" run -n 2 -- "$work/stream"
many=$(unexpected)
echo "        of 2000 messages unexpected: $few; extracting all: $many"
[ "$few" -le 20 ] || { echo 'FAILED  more than 20 were unexpected'; failed=1; }

# Installed.
make -s -C "$here" install BUILD="$work/lib" FMLIB="$FMLIB" PREFIX="$work/prefix"
(unset HAMLYN_MPI_BUILD HAMLYN_FM_LIB; "$work/prefix/bin/hamlynmpicc" "$here/examples/cg.c" -o "$work/installed" -lm)
job 2 "$work/installed"

# The source of a package of Debian, with lists of its own.
fetch() {
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb-src [signed-by=$keys] http://deb.debian.org/debian bookworm main" >"$work/apt/sources"
    set -- "$1" -o Dir::Etc::sourcelist="$work/apt/sources" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache"
    package=$1
    shift
    cd "$work/apt" && timeout 120 apt-get "$@" update && timeout 120 apt-get "$@" source --download-only --tar-only \
        "$package"
}
skipped() {
    echo "SKIPPED $*"
}
if [ -n "${SHORT:-}" ]; then
    skipped 'NetPIPE and the OSU micro-benchmarks: SHORT is set'
elif (fetch netpipe) >"$work/out" 2>&1; then
    mkdir "$work/netpipe"
    tar xzf "$work"/apt/netpipe_*.orig.tar.gz -C "$work/netpipe" --strip-components=1
    (cd "$work/netpipe/src" && "$here/hamlynmpicc" -w -O2 -DMPI netpipe.c mpi.c -I. -o "$work/NPmpi")
    for options in '' -a -S '-a -2' -i; do
        # shellcheck disable=SC2086
        job 2 "$work/NPmpi" -u 300000 -o "$work/np.out" $options
    done
else
    skipped "NetPIPE: Debian's archive cannot be read: $(tail -n 1 "$work/out")"
fi
if [ -n "${OSU:-}" ] && [ -z "${SHORT:-}" ]; then
    osu=$(cd "$OSU/mpi" && pwd)
    for file in "$osu"/pt2pt/osu_*.c "$osu"/collective/osu_*.c "$osu"/startup/osu_*.c; do
        name=$(basename "$file" .c)
        folder=$(dirname "$file")
        case $name in
        osu_pt2pt | osu_coll) continue ;;
        osu_latency_mt) skipped "$name: it wants MPI_THREAD_MULTIPLE" && continue ;;
        osu_i[abgs]*) skipped "$name: collectives that do not wait are left out" && continue ;;
        esac
        common=
        for part in "$folder/osu_pt2pt.c" "$folder/osu_coll.c"; do
            [ ! -e "$part" ] || [ "$name" = osu_mbw_mr ] || common=$part
        done
        # What its configure defines.
        # shellcheck disable=SC2086
        "$here/hamlynmpicc" -w -O2 -DFIELD_WIDTH=18 -DFLOAT_PRECISION=2 -I"$folder" "$file" $common \
            -o "$work/$name" -lm -lpthread
        case $name in
        osu_latency | osu_bw | osu_bibw) job 2 "$work/$name" ;;
        osu_hello | osu_init | osu_multi_lat) job 4 "$work/$name" ;;
        osu_mbw_mr) job 4 "$work/$name" -p 2 ;;
        *) for n in $ranks; do job "$n" "$work/$name" -i 10 -x 2 -m 65536; done ;;
        esac
    done
elif [ -z "${SHORT:-}" ]; then
    skipped 'the OSU micro-benchmarks: OSU is not set to their folder'
fi
[ $failed = 0 ] && echo 'all passed'
exit $failed
