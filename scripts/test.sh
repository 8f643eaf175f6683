#!/bin/sh
# Every check, in the order in which a mistake is found soonest. A step that fails does not stop
# the others; a step that this machine cannot run is skipped loudly. The last line sums up.
#
#   scripts/test.sh               all of them
#   scripts/test.sh unit loom     only those
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh
scripts/prepare.sh test || exit 1

export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"
TARGET="${CARGO_TARGET_DIR:-$PWD/target}"
passed='' failed='' skipped='' reason=''
began=$(date +%s)

# A step returns 0 for passed and 99 for skipped, having set `reason`.
cannot() { reason=$1; return 99; }

fmt() { cargo fmt --all --check; }

clippy() { cargo clippy --workspace --all-targets --features hamlyn/tokio -- -D warnings; }

doc() { RUSTDOCFLAGS='-D warnings' cargo doc -p hamlyn --all-features --no-deps; }

# The pure part builds without the operating system: as a library without `std` here ..
pure() { RUSTFLAGS='-D warnings' CARGO_TARGET_DIR="$TARGET/pure" cargo build --no-default-features --lib; }

# .. and for a target that has no operating system to begin with.
bare() {
    have rustup || { cannot 'no rustup to add the target x86_64-unknown-none with'; return; }
    rustup target list --installed 2>/dev/null | grep -qx x86_64-unknown-none ||
        rustup target add x86_64-unknown-none ||
        { cannot 'the target x86_64-unknown-none cannot be added'; return; }
    CARGO_TARGET_DIR="$TARGET/pure" \
        cargo build --no-default-features --lib --target x86_64-unknown-none
}

unit() { cargo test --workspace --features hamlyn/tokio --no-fail-fast; }

# Every interleaving of the lock-free parts, as far as loom's bound on preemptions goes. It has a
# target directory of its own, because `--cfg loom` changes every crate.
loom() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$TARGET/loom" \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
        LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}" \
        cargo test --release --no-default-features --test loom
}

# Miri interprets the pure part's unit tests and reports undefined behaviour.
miri() {
    have rustup || { cannot 'no rustup to add a nightly toolchain with'; return; }
    cargo +nightly miri --version >/dev/null 2>&1 ||
        rustup toolchain install nightly --profile minimal --component miri,rust-src ||
        { cannot 'no nightly toolchain with miri can be added'; return; }
    cargo +nightly miri setup || { cannot "miri cannot build its standard library"; return; }
    CARGO_TARGET_DIR="$TARGET/miri" MIRIFLAGS='-Zmiri-disable-isolation' PROPTEST_CASES=4 \
        cargo +nightly miri test --no-default-features --lib -- wire:: link:: interface:: protocol::
}

# ThreadSanitizer watches the end points while many threads use them: what is too large for a model.
# Not tokio's tasks: the runtime hands pointers to itself through epoll, which it cannot follow.
tsan() {
    have rustup || { cannot 'no rustup to add a nightly toolchain with'; return; }
    rustup component list --toolchain nightly 2>/dev/null | grep -q '^rust-src.*(installed)' ||
        rustup toolchain install nightly --profile minimal --component rust-src ||
        { cannot 'no nightly toolchain with the standard library can be added'; return; }
    host=$(rustc +nightly -vV | sed -n 's/^host: //p')
    # Through libc, where the sanitizer sees memory come and go.
    RUSTFLAGS='-Zsanitizer=thread --cfg=rustix_use_libc' CARGO_TARGET_DIR="$TARGET/tsan" \
        cargo +nightly test -Zbuild-std --target "$host" --features tokio \
        --lib --test protocol --test stream --test datagram --test group \
        --test protocol_hostile -- --skip interface:: --skip link:: --skip wire::
}

examples() {
    ran=0
    for file in examples/*.rs; do
        [ -e "$file" ] || continue
        name=$(basename "$file" .rs)
        echo "   example $name"
        timeout 120 cargo run --quiet --release --features tokio --example "$name" </dev/null || return 1
        ran=$((ran + 1))
    done
    [ "$ran" -gt 0 ] || cannot 'there are no examples'
}

# The C library as its users have it.
c() {
    capi/test.sh
    status=$?
    [ "$status" != 99 ] || cannot 'there is no C compiler, and none can be installed'
    return "$status"
}

# The measuring tool measures; what it measures in so short a run means nothing.
bench() {
    cargo build --quiet --release --workspace || return 1
    for test in latency rate bandwidth; do
        echo "   hamlyn perf $test"
        timeout 120 "$TARGET/release/hamlyn" perf "$test" --count 2000 --runs 1 --json || return 1
    done
    echo '   hamlyn perf protocols'
    timeout 300 "$TARGET/release/hamlyn" perf protocols --count 2000 --runs 1 --json
}

# What a newcomer runs first, with measurements of a moment.
tour() {
    cargo build --quiet --release --workspace || return 1
    timeout 300 "$TARGET/release/hamlyn" tour --quick --report "$TARGET/tour.html" </dev/null
}

# The Python package as its users have it: a wheel, installed in an environment of its own, and the
# README's own install lines in another, with a home of its own. Both build in the same target
# directory, so nothing is compiled twice.
python() {
    have python3 || { cannot 'there is no python3'; return; }
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { cannot "$(python3 --version) is older than 3.11"; return; }
    venv="$TARGET/python" wheels="$TARGET/wheels" home="$TARGET/python-home"
    rm -rf "$wheels" "$home" && mkdir -p "$home" || return 1
    python3 -m venv "$venv" ||
        { cannot 'python3 cannot make a virtual environment (python3-venv)'; return; }
    echo '   pip wheel'
    "$venv/bin/pip" wheel --quiet --disable-pip-version-check . --no-deps -w "$wheels" || return 1
    "$venv/bin/python" python/tests/wheel.py "$wheels"/* || return 1
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$(echo "$wheels"/*)[test]" &&
        "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall \
            "$wheels"/* || return 1
    echo '   the install lines of python/README.md'
    install_lines="$(sed -n '/^## Install/,/^## /p' python/README.md |
        sed -n '/^```sh$/,/^```$/p' | sed '/^```/d')"
    [ -n "$install_lines" ] || { loud 'python/README.md has no install lines'; return 1; }
    # A home of its own for what they make there; Rust stays where it is.
    cargo_home="${CARGO_HOME:-$HOME/.cargo}" rustup_home="${RUSTUP_HOME:-$HOME/.rustup}"
    HOME="$home" CARGO_HOME="$cargo_home" RUSTUP_HOME="$rustup_home" \
        sh -euxc "$install_lines" || return 1
    echo '   mypy'
    "$venv/bin/mypy" --no-error-summary python/hamlyn python/tests python/examples python/bench &&
        "$venv/bin/stubtest" hamlyn --allowlist python/tests/stubtest.txt \
            --ignore-unused-allowlist >/dev/null || return 1
    # The peers of other languages, for tests/test_languages.py.
    cargo build --quiet -p hamlyn-capi --lib --examples || return 1
    echo '   pytest'
    HAMLYN_TEST_ALL=1 timeout 900 "$venv/bin/pytest" python/tests || return 1
    for file in python/examples/*.py; do
        [ "$(basename "$file")" != common.py ] || continue
        echo "   example $(basename "$file" .py)"
        MPLBACKEND=agg HAMLYN_EXAMPLE_OUT="$TARGET" timeout 120 "$venv/bin/python" "$file" \
            </dev/null || return 1
    done
    # What it measures in so short a run means nothing.
    echo '   bench'
    cargo build --quiet --release --workspace || return 1
    CARGO_TARGET_DIR="$TARGET" timeout 120 "$venv/bin/python" python/bench/bench.py --json --runs 1 --rounds 500 --mib 1
}

package() {
    set --
    if [ -n "$(git status --porcelain 2>/dev/null | head -n 1)" ]; then
        loud 'uncommitted changes: packaging them too'
        set -- --allow-dirty
    fi
    # The command depends on the library, which is not published yet; so the library alone.
    cargo package --quiet -p hamlyn "$@"
}

run() {
    say "$1: $2"
    start=$(date +%s)
    reason=
    "$1"
    status=$?
    took=$(($(date +%s) - start))
    case $status in
        0) passed="$passed $1"; echo "   $1 passed, $took s" ;;
        99) skipped="$skipped $1"; loud "$1 SKIPPED: $reason" ;;
        *) failed="$failed $1"; loud "$1 FAILED, $took s" ;;
    esac
}

wanted() {
    [ -z "$only" ] && return 0
    case " $only " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

only="$*"
for step in $only; do
    # shellcheck disable=SC2194
    case " fmt clippy pure bare doc unit loom miri tsan examples c bench tour python package " in
        *" $step "*) ;;
        *) loud "no step is called $step"; exit 2 ;;
    esac
done

wanted fmt && run fmt 'the code is formatted'
wanted clippy && run clippy 'clippy has nothing to say, on any target'
wanted pure && run pure 'the pure part builds without the feature os'
wanted bare && run bare 'the pure part builds for a machine without an operating system'
wanted doc && run doc 'the documentation builds without a warning'
wanted unit && run unit 'unit, property, process and tidy tests'
wanted loom && run loom 'loom models'
wanted miri && run miri 'the pure unit tests under Miri'
wanted tsan && run tsan 'end points with many threads under ThreadSanitizer'
wanted examples && run examples 'every example runs to its end'
wanted c && run c 'the C library, installed: as C, as C++, AddressSanitizer, valgrind'
wanted bench && run bench 'the measuring tool runs'
wanted tour && run tour 'hamlyn tour, quickly'
wanted python && run python 'the Python package: types, tests, examples'
wanted package && run package 'the library packages, and builds from its package'

count() { echo $#; }
echo
[ -z "$skipped" ] || loud "skipped:$skipped"
[ -z "$failed" ] || loud "failed:$failed"
# shellcheck disable=SC2086
say "make test: $(count $passed) passed, $(count $failed) failed, $(count $skipped) skipped, $(($(date +%s) - began)) s"
[ -z "$failed" ]
