#!/bin/sh
# The C side of shared virtual memory, against the dev build:
#
#   layers/svm/test.sh [DIR] [HAMLYN]      DIR has libhamlyn_svm.so; target/debug unless given. HAMLYN is the command
#
# Each program ends within a minute. Ends with 99 where there is no C compiler.
set -eu
cd "$(dirname "$0")/../.."
layer=svm
. layers/common.sh
begin_test "${1-}"
hamlyn=${2:-$built/hamlyn}
flags='-O1 -g -fno-builtin-malloc -Wall -Wextra -Werror -Ilayers/svm/include'
libs="-L$built -lhamlyn_svm -Wl,-rpath,$built -lm -lpthread"

# sizes PROCESSES: the programs of the paper, small; SVM_PROTOCOL chooses. Each compares with its sequential result.
sizes() {
    run "$1" radix 16384
    run "$1" ocean 18 2
    run "$1" barnes 128 2
}

# run PROCESSES PROGRAM [ARGUMENTS]
run() {
    processes=$1
    program=$2
    shift 2
    echo "$program $* with $processes processes"
    timeout 60 "$hamlyn" run -n "$processes" ${HOSTS-} ${HOSTS:+"sh $work/rsh"} -- "$work/$program" "$@" || {
        echo "$program $* with $processes processes FAILED" >&2
        exit 1
    }
}

# compile COMPILER SOURCE PROGRAM
compile() {
    # shellcheck disable=SC2086
    $1 $flags "$2" -o "$work/$3" $libs
}

compile 'cc -std=gnu11' layers/svm/examples/hello.c hello
compile 'c++ -xc++' layers/svm/tests/c/objects.c objects
run 2 objects hlrc
for program in objects rounds stencil death misuse named quiet; do
    compile 'cc -std=gnu11' layers/svm/tests/c/$program.c $program
done
for program in radix ocean barnes; do compile 'cc -std=gnu11 -O2' layers/svm/programs/$program.c $program; done
# shellcheck disable=SC2086
cc -std=gnu11 $flags -Ilayers/svm/anl -c layers/svm/anl/anl.c -o "$work/anl.o"
for compiler in 'cc -std=gnu11' 'c++ -xc++'; do
    # shellcheck disable=SC2086
    $compiler $flags -Ilayers/svm/anl -include layers/svm/anl/anl.h -c layers/svm/tests/c/anl.c -o "$work/anl_test.o"
    # shellcheck disable=SC2086
    cc "$work/anl_test.o" "$work/anl.o" -o "$work/anl" $libs
    for processes in 1 2 8; do
        for SVM_PROTOCOL in hlrc hlrc-au; do
            echo "anl $processes, $SVM_PROTOCOL"
            SVM_PROTOCOL=$SVM_PROTOCOL timeout 60 "$work/anl" $processes
        done
    done
done
number=0
for protocol in hlrc hlrc-au aurc; do
    run 2 hello $number
    number=$((number + 1))
    for processes in 1 4; do run $processes objects $protocol; done
    for processes in 2 3; do run $processes stencil $protocol 66 8; done
    # Copies in a sixteenth of the shared space.
    run 2 rounds $protocol 256 1024 1 2
    run 8 rounds $protocol 256 96 2 4
    run 3 rounds $protocol 0 64 4 3
    for processes in 2 3; do run $processes death $protocol; done
    run 2 misuse $protocol
    run 2 quiet $protocol
    echo "named $protocol 3"
    timeout 60 "$work/named" $protocol 3
done

echo 'the ways that are taken where the system allows no better'
for way in SVM_FAULTS=protection SVM_FETCH=ask; do
    for protocol in hlrc hlrc-au aurc; do
        echo "$way $protocol"
        (
            export "$way"
            run 2 rounds $protocol 256 192 2 2
            run 2 objects $protocol
        )
    done
done
(
    export SVM_FAULTS=protection
    run 2 misuse hlrc
    run 3 death hlrc
)

# Two hosts: network namespaces with a cable between them. In the place of ssh: the host, and behind it the command.
a=svm-$$-a
b=svm-$$-b
skipped() { printf '\033[1;33m!! SKIPPED two hosts: %s\033[0m\n' "$1"; }
cable() {
    ip netns add $a && ip netns add $b &&
        ip -n $a link add svm$$a type veth peer name svm$$b netns $b &&
        ip -n $a addr add 10.79.0.1/24 dev svm$$a && ip -n $b addr add 10.79.0.2/24 dev svm$$b &&
        ip -n $a link set svm$$a up && ip -n $b link set svm$$b up &&
        ip -n $a link set lo up && ip -n $b link set lo up
}
trap 'ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null; rm -rf "$work"' EXIT
if ! cable 2>"$work/said"; then
    skipped "$(cat "$work/said")"
else
    cat >"$work/rsh" <<END
case \$1 in 10.79.0.1) host=$a ;; 10.79.0.2) host=$b ;; *) exit 9 ;; esac
shift
mkdir -p -m 700 "$work/\$host"
HAMLYN_DIR="$work/\$host" exec ip netns exec \$host "\$@"
END
    if timeout 60 "$hamlyn" run -n 2 --hosts 10.79.0.1,10.79.0.2 --rsh "sh $work/rsh" -- "$work/hello" >"$work/said" 2>&1; then
        HOSTS="--hosts 10.79.0.1,10.79.0.2 --rsh"
        for protocol in hlrc hlrc-au aurc; do
            run 2 rounds $protocol 256 192 2 2
            run 4 objects $protocol
            run 3 stencil $protocol 66 4
            SVM_PROTOCOL=$protocol sizes 2
        done
        run 3 death aurc
        unset HOSTS
    elif grep -q 'feature tls' "$work/said"; then
        skipped "$built has no TLS"
    else
        cat "$work/said" >&2
        exit 1
    fi
fi

# Another thread that touches the shared space.
for program in misuse quiet; do
    status=0
    timeout 60 "$hamlyn" run -n 1 -- "$work/$program" hlrc thread 2>"$work/said" || status=$?
    if [ $status != 70 ] || ! grep -q '^svm: process 0: another thread than that which joined' "$work/said"; then
        echo "another thread, $program FAILED: status $status" >&2
        cat "$work/said" >&2
        exit 1
    fi
done

# As it is installed.
install_here
installed hamlyn-svm layers/svm/examples/hello.c hello
run 2 hello
installed hamlyn-anl layers/svm/tests/c/anl.c anl -include anl.h
timeout 60 "$work/anl" 2
uninstall_here
echo 'all passed'
