#!/bin/sh
# The C side of CLAN, against the dev build:
#
#   layers/clan/test.sh [DIR]      DIR has libhamlyn_clan.so; target/debug unless given
#
# The example and the tests, compiled as C and as C++; the header against the library; and the example as a user compiles it.
# Each ends within a minute. Ends with 99 where there is no C compiler.
set -eu
cd "$(dirname "$0")/../.."
layer=clan
. layers/common.sh
begin_test "${1-}"

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
install_here
installed hamlyn-clan layers/clan/examples/hello.c hello -Werror
run hello
uninstall_here
