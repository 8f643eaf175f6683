#!/bin/sh
# The C library as its users have it: installed somewhere, found by pkg-config, and used by every
# example and test program, compiled as C and as C++, under AddressSanitizer and under valgrind.
#
#   capi/test.sh PROFILE WAY ..     of c, c++, asan, valgrind, static; all of them unless given
#
# PROFILE is that of cargo: dev or release. NAMES='hello errors' tries only these programs.
# Exit status 0: passed; 99: there is no C compiler, and none can be had.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

HAMLYN_PROFILE=${1:-release}
export HAMLYN_PROFILE
[ $# = 0 ] || shift
ways=${*:-c c++ asan valgrind static}
wanted() { case " $ways " in *" $1 "*) ;; *) return 1 ;; esac; }

have cc || { loud 'no C compiler'; exit 99; }
tools='c++ pkg-config'
! wanted valgrind || tools="$tools valgrind"
for tool in $tools; do
    have "$tool" || { loud "$tool is missing, and scripts/prepare.sh could not install it"; exit 1; }
done

# With the features of the whole workspace, as every other step builds it; in the dev profile also the
# examples, without which cargo would take other features of other crates and build all of them anew.
examples=
[ "$HAMLYN_PROFILE" != dev ] || examples=--examples
# shellcheck disable=SC2086
cargo build --quiet --profile "$HAMLYN_PROFILE" --workspace --features hamlyn/tokio --lib --bins $examples ||
    exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
fail() { loud "$*"; failed=1; }

# A staging root, as for a package, so that nothing of the system's own is found by mistake.
export DESTDIR="$work/root" PREFIX=/usr/local
capi/install.sh install >/dev/null || exit 1
for file in bin/hamlyn share/man/man1/hamlyn.1 share/man/man1/hamlyn-stat.1 lib/tmpfiles.d/hamlyn.conf \
    share/bash-completion/completions/hamlyn include/hamlyn.h lib/libhamlyn.so; do
    [ -s "$DESTDIR$PREFIX/$file" ] || fail "make install left no $file"
done
grep -q '^d /run/hamlyn 1777 root root' "$DESTDIR$PREFIX/lib/tmpfiles.d/hamlyn.conf" ||
    fail 'the line for systemd-tmpfiles makes no directory'
export PKG_CONFIG_LIBDIR="$DESTDIR$PREFIX/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$DESTDIR"
export LD_LIBRARY_PATH="$DESTDIR$PREFIX/lib"
cflags=$(pkg-config --cflags hamlyn) || exit 1
libs=$(pkg-config --libs hamlyn) || exit 1
private=$(sed -n 's/^Libs.private: //p' "$PKG_CONFIG_LIBDIR/hamlyn.pc")
C='cc -std=c99 -Wall -Wextra -Wpedantic -Werror -pthread -g -O1'
CXX='c++ -x c++ -std=c++11 -Wall -Wextra -Werror -pthread -g -O1'
asan='-fsanitize=address,undefined -fno-omit-frame-pointer'
STATIC="-Wl,-Bstatic -lhamlyn -Wl,-Bdynamic $private"

# One program, compiled one way and run: try NAME SOURCE WAY COMPILER LIBRARIES [COMMAND ..]
try() {
    name=$1 source=$2 way=$3 compiler=$4 libraries=$5
    shift 5
    program="$work/$name-$way"
    # shellcheck disable=SC2086
    $compiler $cflags "$source" -x none -o "$program" ${libs%-lhamlyn*} $libraries ||
        { fail "$name does not compile ($way)"; return; }
    timeout 120 "$@" "$program" >"$work/out" 2>&1 </dev/null || {
        fail "$name failed ($way)"
        cat "$work/out"
        return
    }
    echo "   $name ($way)"
}

# As users run it: what is possibly lost is an error, too. Still reachable at the end is what threads
# that run until the end have.
memcheck="valgrind --quiet --error-exitcode=9 --leak-check=full --trace-children=yes
    --fair-sched=yes --suppressions=$DESTDIR$PREFIX/share/hamlyn/valgrind.supp"

for source in capi/examples/*.c capi/tests/errors.c capi/tests/waiting.c capi/tests/rest.c; do
    [ -e "$source" ] || continue
    name=$(basename "$source" .c)
    case " ${NAMES:-$name} " in *" $name "*) ;; *) continue ;; esac
    ! wanted c || try "$name" "$source" c "$C" -lhamlyn
    ! wanted c++ || try "$name" "$source" c++ "$CXX" -lhamlyn
    ! wanted asan || try "$name" "$source" asan "$C $asan" -lhamlyn
    # shellcheck disable=SC2086
    ! wanted valgrind || try "$name" "$source" valgrind "$C" -lhamlyn $memcheck
    # shellcheck disable=SC2086
    ! wanted valgrind || try "$name" "$source" c++-valgrind "$CXX" -lhamlyn $memcheck
done
# The programs of the README, as they stand there: readme WAY COMPILER [COMMAND ..]
readme() {
    way=$1 compiler=$2
    shift 2
    for name in receive send; do
        sed -n "/<!-- program: $name.c -->/,/^\`\`\`\$/p" capi/README.md | sed '/^<!--/d; /^```/d' \
            >"$work/$name.c"
        # shellcheck disable=SC2086
        $compiler $cflags "$work/$name.c" -x none -o "$work/$name" $libs ||
            { fail "the README's $name.c does not compile ($way)"; return; }
    done
    rm -rf "$work/names"
    mkdir -m 700 "$work/names"
    HAMLYN_DIR="$work/names" timeout 60 "$@" "$work/receive" >"$work/received" 2>"$work/end" &
    receiving=$!
    tries=0
    until HAMLYN_DIR="$work/names" timeout 60 "$@" "$work/send" 2>"$work/out"; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { fail "the README's send.c ($way)"; cat "$work/out"; break; }
        sleep 0.1
    done
    wait "$receiving" || { fail "the README's receive.c ($way)"; cat "$work/end"; }
    grep -qx 'hello, without a system call' "$work/received" || {
        fail "what the programs of the README exchanged ($way)"
        cat "$work/received" "$work/end"
    }
    echo "   the programs of the README ($way)"
}
if [ -z "${NAMES-}" ]; then
    ! wanted c || readme c "$C"
    ! wanted c++ || readme c++ "$CXX"
    ! wanted asan || readme asan "$C $asan"
    # shellcheck disable=SC2086
    ! wanted valgrind || readme valgrind "$C" $memcheck
    # shellcheck disable=SC2086
    ! wanted valgrind || readme c++-valgrind "$CXX" $memcheck
fi

if wanted static; then
    try hello capi/examples/hello.c static "$C" "$STATIC"
    if ldd "$work/hello-static" | grep -q libhamlyn; then
        fail 'the program that should hold libhamlyn.a asks for libhamlyn.so'
    fi
    try hello capi/examples/hello.c all-static "$C -static" "-lhamlyn $private"
fi

capi/install.sh uninstall || fail 'uninstall failed'
left=$(find "$DESTDIR" ! -type d)
[ -z "$left" ] || fail "uninstall left $left"
exit $failed
