#!/bin/sh
# The C side of CLAN, against the dev build:
#
#   layers/clan/test.sh [DIR]      DIR has libhamlyn_clan.so; target/debug unless given
#
# The example and the tests, compiled as C and as C++; the header against the library; and the example as a user compiles it.
# Each ends within a minute. Ends with 99 where there is no C compiler.
set -eu
cd "$(dirname "$0")/../.."
built=$(cd "${1:-${CARGO_TARGET_DIR:-target}/debug}" && pwd)
command -v cc >/dev/null 2>&1 || exit 99
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HAMLYN_DIR="$work/dir"
mkdir -m 700 "$HAMLYN_DIR"

# run PROGRAM
run() { timeout 60 "$work/$1" || { echo "$1 FAILED" >&2; exit 1; }; }

for compiler in 'cc' 'c++ -xc++'; do
    for source in examples/hello tests/c/errors; do
        name=${source##*/}
        # shellcheck disable=SC2086
        $compiler -Wall -Wextra -Werror -Ilayers/clan/include -c "layers/clan/$source.c" -o "$work/$name.o"
        cc "$work/$name.o" -o "$work/$name" -L"$built" -lhamlyn_clan -Wl,-rpath,"$built"
        run "$name"
    done
done
# The README's calls are the example's.
sed -n '/^```c$/,/^```$/s/^\(clan_.*\);.*/\1/p' layers/clan/README.md | while read -r call; do
    sed 's/LIMIT_MS/10000/' layers/clan/examples/hello.c | grep -qF "$call" ||
        { echo "README: hello.c has no $call" >&2; exit 1; }
done
# Every function of the header is there, and no other.
grep -o 'clan_[a-z_]*(' layers/clan/include/clan.h | tr -d '(' | sort -u >"$work/declared"
if command -v nm >/dev/null 2>&1; then
    nm -D --defined-only "$built/libhamlyn_clan.so" | sed -n 's/.* \(clan_[a-z_]*\)$/\1/p' | sort -u >"$work/exported"
    diff "$work/declared" "$work/exported"
fi
# As it is installed.
PREFIX="$work/prefix" HAMLYN_BUILT="$built" layers/clan/install.sh install
# shellcheck disable=SC2046
cc -Wall -Werror layers/clan/examples/hello.c -o "$work/hello" \
    $(PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" pkg-config --cflags --libs hamlyn-clan) -Wl,-rpath,"$work/prefix/lib"
run hello
PREFIX="$work/prefix" layers/clan/install.sh uninstall
[ -z "$(find "$work/prefix" -type f)" ] || { echo "uninstall leaves $(find "$work/prefix" -type f)" >&2; exit 1; }
