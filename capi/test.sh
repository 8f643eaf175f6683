#!/bin/sh
# The C library as its users have it: installed somewhere, found by pkg-config, and used by every
# example and test program, compiled as C and as C++, under AddressSanitizer and under valgrind.
#
#   capi/test.sh PROFILE WAY ..     of c, c++, asan, valgrind, static, cmake, loops; all of them unless given
#
# PROFILE is that of cargo: dev or release. NAMES='hello errors' tries only these programs.
# Exit status 0: passed; 99: there is no C compiler, and none can be had.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

HAMLYN_PROFILE=${1:-release}
export HAMLYN_PROFILE
[ $# = 0 ] || shift
ways=${*:-c c++ asan valgrind static cmake loops}
wanted() { case " $ways " in *" $1 "*) ;; *) return 1 ;; esac; }

have cc || { loud 'no C compiler'; exit 99; }
tools='c++ pkg-config'
! wanted valgrind || tools="$tools valgrind"
for tool in $tools; do
    have "$tool" || { loud "$tool is missing, and scripts/prepare.sh could not install it"; exit 1; }
done

# As every other step builds it, so that nothing is compiled twice: the release without Python's library;
# in the dev profile with the tests' features, and the examples, without which cargo would take others.
with='--exclude hamlyn-python'
[ "$HAMLYN_PROFILE" != dev ] || with='--features hamlyn/serde,hamlyn/tokio,hamlyn/tls,hamlyn/libfabric --lib --bins --examples'
# shellcheck disable=SC2086
cargo build --quiet --profile "$HAMLYN_PROFILE" --workspace $with || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
exit_on_signals
failed=0
fail() { loud "$*"; failed=1; }

# A staging root, as for a package, so that nothing of the system's own is found by mistake.
export DESTDIR="$work/root" PREFIX=/usr/local
capi/install.sh install >/dev/null || exit 1
for file in bin/hamlyn share/man/man1/hamlyn.1 share/man/man1/hamlyn-stat.1 lib/tmpfiles.d/hamlyn.conf \
    share/bash-completion/completions/hamlyn include/hamlyn.h include/hamlyn.hpp lib/libhamlyn.so \
    lib/cmake/hamlyn/hamlynConfig.cmake share/hamlyn/valgrind.supp share/hamlyn/tsan.supp; do
    [ -s "$DESTDIR$PREFIX/$file" ] || fail "make install left no $file"
done
grep -q '^d /run/hamlyn 1777 root root' "$DESTDIR$PREFIX/lib/tmpfiles.d/hamlyn.conf" ||
    fail 'the line for systemd-tmpfiles makes no directory'
export PKG_CONFIG_LIBDIR="$DESTDIR$PREFIX/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$DESTDIR"
export LD_LIBRARY_PATH="$DESTDIR$PREFIX/lib"
cflags=$(pkg-config --cflags hamlyn) || exit 1
libs=$(pkg-config --libs hamlyn) || exit 1
private=$(sed -n 's/^Libs.private: //p' "$PKG_CONFIG_LIBDIR/hamlyn.pc")
# A function that the header promises is there, and one that is there is promised: what the header was
# made from is expanded by other means than the compiler's.
if have nm; then
    grep -v '^ *//' "$DESTDIR$PREFIX/include/hamlyn.h" | grep -o '\bh_[a-z0-9_]*(' | tr -d '(' | sort -u >"$work/promised"
    nm -D --defined-only "$DESTDIR$PREFIX/lib/libhamlyn.so" | sed -n 's/^[0-9a-f]* T \(h_.*\)$/\1/p' |
        sort -u >"$work/exported"
    diff "$work/promised" "$work/exported" >"$work/out" ||
        { fail 'hamlyn.h and libhamlyn.so have other functions'; cat "$work/out"; }
fi
C='cc -std=c99 -Wall -Wextra -Wpedantic -Werror -pthread -g -O1'
CXX='c++ -x c++ -std=c++11 -Wall -Wextra -Werror -pthread -g -O1'
# hamlyn.hpp, as both of its languages.
CXX17='c++ -x c++ -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror -pthread -g -O1'
CXX20="c++ -x c++ -std=c++20 ${CXX17#*c++17 }"
macros='-include capi/tests/macros.h'
# Every warning of g++ that is off by default, but those about other libraries' headers, the ABI of other
# versions, attributes that a function could have, `long long`, and functions that are not `noexcept`; then
# those that it does not list.
warnings() {
    c++ -Q --help=warnings,c++ 2>/dev/null |
        sed -n 's/^ *\(-W[a-z0-9+-]*\) .*\[disabled\].*/\1/p' |
        grep -vx -e -Wsystem-headers -e '-Wabi.*' -e '-Wsuggest.*' -e -Wlong-long -e -Wnoexcept
    for warning in useless-cast effc++ old-style-cast zero-as-null-pointer-constant extra-semi \
        non-virtual-dtor overloaded-virtual suggest-override strict-null-sentinel comma-subscript \
        deprecated-copy-dtor ctor-dtor-privacy sign-promo conditionally-supported redundant-tags \
        mismatched-tags cast-align null-dereference multiple-inheritance virtual-inheritance volatile; do
        echo "-W$warning"
    done
}
# All of clang's, but what C++98 and C++14 had not, padding, a class that throws in a header alone, pointers
# that are not spans, and two about the macros of the test.
CLANG_WARNINGS='-Weverything -Wno-unknown-warning-option -Wno-c++98-compat -Wno-c++98-compat-pedantic
    -Wno-c++98-compat-local-type-template-args -Wno-pre-c++14-compat -Wno-pre-c++17-compat -Wno-padded
    -Wno-weak-vtables -Wno-unsafe-buffer-usage -Wno-extra-semi-stmt -Wno-disabled-macro-expansion'
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
        # Without what valgrind says of system calls that it does not know.
        grep -v '^--[0-9]*-- ' "$work/out"
        return
    }
    echo "   $name ($way)"
}

# As users run it: what is possibly lost is an error, too. Still reachable at the end is what threads
# that run until the end have.
memcheck="valgrind --quiet --error-exitcode=9 --leak-check=full --trace-children=yes
    --fair-sched=yes --suppressions=$DESTDIR$PREFIX/share/hamlyn/valgrind.supp"

for source in capi/examples/*.c capi/tests/errors.c capi/tests/waiting.c capi/tests/rest.c capi/tests/reconnect.c \
    capi/tests/log.c capi/tests/directory.c capi/tests/areas.c capi/tests/publish.c capi/tests/byte_stream.c capi/tests/job.c \
    capi/tests/surroundings.c; do
    [ -e "$source" ] || continue
    name=$(basename "$source" .c)
    case " ${NAMES:-$name} " in *" $name "*) ;; *) continue ;; esac
    # The ranks of a job.
    case $name in job_*) starter="$DESTDIR$PREFIX/bin/hamlyn run -n 4 --" ;; *) starter= ;; esac
    # shellcheck disable=SC2086
    {
        ! wanted c || try "$name" "$source" c "$C" -lhamlyn $starter
        ! wanted c++ || try "$name" "$source" c++ "$CXX" -lhamlyn $starter
        ! wanted asan || try "$name" "$source" asan "$C $asan" -lhamlyn $starter
        ! wanted valgrind || try "$name" "$source" valgrind "$C" -lhamlyn $starter $memcheck
    }
done
# hamlyn.h among the macros of others.
printf '#include <hamlyn.h>\nint main(void) { return !h_version(); }\n' >"$work/header.c"
! wanted c || try header "$work/header.c" macros "$C -D_GNU_SOURCE $macros" -lhamlyn
# Those of hamlyn.hpp.
for source in capi/examples/*.cpp capi/tests/types.cpp; do
    name=$(basename "$source" .cpp)
    case " ${NAMES:-$name} " in *" $name "*) ;; *) continue ;; esac
    if wanted c++; then
        try "$name" "$source" c++17 "$CXX17" -lhamlyn
        try "$name" "$source" c++20 "$CXX20" -lhamlyn
        # By both compilers where both are.
        ! have clang++ || try "$name" "$source" clang++ "clang++${CXX20#c++}" -lhamlyn
        if [ "$name" = types ]; then
            try "$name" "$source" no-exceptions "$CXX17 -fno-exceptions" -lhamlyn
            try "$name" "$source" macros-17 "$CXX17 $macros" -lhamlyn
            try "$name" "$source" macros-20 "c++ -x c++ -std=gnu++20 ${CXX17#*c++17 } $macros" -lhamlyn
            all=$(warnings)
            try "$name" "$source" warnings-17 "$CXX17 $all" -lhamlyn
            try "$name" "$source" warnings-20 "$CXX20 $all" -lhamlyn
            ! have clang++ || try "$name" "$source" warnings-clang++ \
                "clang++${CXX20#c++} $CLANG_WARNINGS" -lhamlyn
        fi
    fi
    ! wanted asan || try "$name" "$source" asan "$CXX17 $asan" -lhamlyn
    # shellcheck disable=SC2086
    ! wanted valgrind || try "$name" "$source" valgrind "$CXX17" -lhamlyn $memcheck
done
# The programs of the README, as they stand there: readme WAY COMPILER [COMMAND ..]
readme() {
    way=$1 compiler=$2
    shift 2
    receiver=receive.c
    # The C++ one, too, which talks to the same sender.
    case $way in c++17*) receiver=receive.cpp ;; esac
    for file in $receiver send.c; do
        name=${file%.*}
        sed -n "/<!-- program: $file -->/,/^\`\`\`\$/p" capi/README.md | sed '/^<!--/d; /^```/d' \
            >"$work/$file"
        # shellcheck disable=SC2086
        $compiler $cflags "$work/$file" -x none -o "$work/$name" $libs ||
            { fail "the README's $file does not compile ($way)"; return; }
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
    grep -qx 'hello from another process' "$work/received" || {
        fail "what the programs of the README exchanged ($way)"
        cat "$work/received" "$work/end"
    }
    echo "   the programs of the README ($way)"
}
if [ -z "${NAMES-}" ]; then
    ! wanted c || readme c "$C"
    ! wanted c++ || readme c++ "$CXX"
    ! wanted c++ || readme c++17 "$CXX17"
    ! wanted asan || readme asan "$C $asan"
    # shellcheck disable=SC2086
    ! wanted valgrind || readme valgrind "$C" $memcheck
    # shellcheck disable=SC2086
    ! wanted valgrind || readme c++-valgrind "$CXX" $memcheck
fi

# A user's project, and the same after everything was moved elsewhere: cmake FLAGS
cmake_project() {
    place=$1
    rm -rf "$work/cmake"
    cmake -S capi/tests/cmake -B "$work/cmake" -DCMAKE_PREFIX_PATH="$place" >"$work/out" 2>&1 &&
        cmake --build "$work/cmake" >>"$work/out" 2>&1 ||
        { fail "the project of capi/tests/cmake is not built"; cat "$work/out"; return; }
    for name in with_shared with_static; do
        # By the paths that cmake wrote into it.
        env -u LD_LIBRARY_PATH timeout 60 "$work/cmake/$name" >"$work/out" 2>&1 ||
            { fail "$name of the cmake project"; cat "$work/out"; }
        echo "   $name, by find_package in $2 (cmake)"
    done
}
if wanted cmake && [ -z "${NAMES-}" ]; then
    if have cmake; then
        cmake_project "$DESTDIR$PREFIX" 'a staging root'
        mv "$DESTDIR$PREFIX" "$work/moved" && mkdir -p "$DESTDIR$PREFIX"
        cmake_project "$work/moved" 'another place'
        rm -rf "${DESTDIR:?}$PREFIX" && mv "$work/moved" "$DESTDIR$PREFIX"
        # Where distributions put libraries; and headers that are not below PREFIX.
        other=$work/other
        for places in "PREFIX=$other LIBDIR=$other/lib/$(cc -print-multiarch)" \
            "PREFIX=$other INCLUDEDIR=$work/headers"; do
            # shellcheck disable=SC2086
            env -u LIBDIR -u INCLUDEDIR DESTDIR= $places capi/install.sh install >/dev/null ||
                fail "install with $places"
            cmake_project "$other" "$places"
            rm -rf "$other" "$work/headers"
        done
    else
        loud 'cmake SKIPPED: it is missing, and scripts/prepare.sh could not install it'
    fi
fi

# The programs of docs/event-loops.md: loop NAME COMPILER PACKAGE
loop() {
    name=$1 compiler=$2 flags=$3
    sed -n "/<!-- program: $name -->/,/^\`\`\`\$/p" docs/event-loops.md |
        sed '/^<!--/d; /^```/d' >"$work/$name"
    # shellcheck disable=SC2086
    $compiler $cflags "$work/$name" -x none -o "$work/loop" $libs $flags ||
        { fail "$name of docs/event-loops.md does not compile"; return; }
    rm -rf "$work/names"
    mkdir -m 700 "$work/names"
    HAMLYN_DIR="$work/names" timeout 60 "$work/loop" >"$work/out" 2>&1 &
    looping=$!
    HAMLYN_DIR="$work/names" "$work/ask_echo" || fail "the client of $name"
    wait "$looping" || { fail "$name of docs/event-loops.md"; cat "$work/out"; }
    echo "   $name (loops)"
}
if wanted loops && [ -z "${NAMES-}" ]; then
    # shellcheck disable=SC2086
    $CXX17 $cflags capi/tests/ask_echo.cpp -x none -o "$work/ask_echo" $libs ||
        fail 'ask_echo.cpp does not compile'
    header() { echo "#include <$1>" | c++ -x c++ -fsyntax-only ${2-} - 2>/dev/null; }
    # Their own headers are not held to our warnings.
    if header uv.h; then loop libuv.c "cc -std=gnu99 -Wall -Werror -pthread" -luv; else loud 'libuv SKIPPED: there is no uv.h'; fi
    if header asio.hpp; then loop asio.cpp "c++ -x c++ -std=c++17 -Wall -Werror -pthread" ''
    else loud 'asio SKIPPED: there is no asio.hpp'; fi
    glib=$(PKG_CONFIG_LIBDIR='' PKG_CONFIG_SYSROOT_DIR='' env -u PKG_CONFIG_LIBDIR -u PKG_CONFIG_SYSROOT_DIR \
        pkg-config --cflags --libs glib-2.0 2>/dev/null) || glib=
    if [ -n "$glib" ]; then loop glib.c "cc -std=gnu99 -Wall -Werror -pthread" "$glib"
    else loud 'GLib SKIPPED: there is no glib-2.0.pc'; fi
fi

# What pkg-config says after everything was moved: nothing of the place where it was.
if wanted c && [ -z "${NAMES-}" ]; then
    cp -a "$DESTDIR$PREFIX" "$work/moved"
    flags=$(env -u PKG_CONFIG_SYSROOT_DIR PKG_CONFIG_LIBDIR="$work/moved/lib/pkgconfig" \
        pkg-config --cflags --libs hamlyn)
    case $flags in
        *"$PREFIX"* | *"$DESTDIR"*) fail "hamlyn.pc, moved, says $flags" ;;
    esac
    # shellcheck disable=SC2086
    $C capi/examples/hello.c -o "$work/moved-hello" $flags &&
        LD_LIBRARY_PATH="$work/moved/lib" timeout 60 "$work/moved-hello" >"$work/out" 2>&1 </dev/null ||
        { fail 'hello, by a hamlyn.pc that was moved'; cat "$work/out"; }
    echo '   hello, by a hamlyn.pc that was moved (c)'
    rm -rf "$work/moved" "$work/moved-hello"
    # Where headers or libraries are not below PREFIX it says their places.
    other=$work/other
    for places in "PREFIX=$other LIBDIR=$other/lib/$(cc -print-multiarch)" \
        "PREFIX=$other INCLUDEDIR=$work/headers" "PREFIX=/usr LIBDIR=/usr/lib/$(cc -print-multiarch)"; do
        # shellcheck disable=SC2086
        env -u LIBDIR -u INCLUDEDIR DESTDIR="$work/stage" $places capi/install.sh install >/dev/null ||
            fail "install with $places"
        pc=$(find "$work/stage" -name hamlyn.pc)
        flags=$(PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR="$work/stage" pkg-config --cflags hamlyn)
        case $places in
            PREFIX=/usr*) grep -qx 'includedir=/usr/include' "$pc" ;;
            *) [ -e "$(echo "${flags#-I}" | tr -d ' ')/hamlyn.h" ] ;;
        esac || fail "hamlyn.pc with $places says $flags"
        rm -rf "$work/stage"
    done
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
