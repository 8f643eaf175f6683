#!/bin/sh
# Measures every figure of the README, one after another on an otherwise idle machine, and prints
# rows of JSON: first the machine, then one row for each figure; one command measures all those of
# the protocols. Takes about five minutes.
#
#   make build && bench/figures.sh >bench/results/NAME.jsonl
set -eu
cd "$(dirname "$0")/.."
hamlyn="${CARGO_TARGET_DIR:-target}/release/hamlyn"
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
family=$(sed -n 's/^cpu family[^:]*: //p' /proc/cpuinfo | head -n 1)
printf '{"machine":"%s, family %s, %s cores","kernel":"%s","compiler":"%s","commit":"%s","date":"%s"}\n' \
    "$cpu" "$family" "$(nproc)" "$(uname -r)" "$(rustc --version)" \
    "$(git describe --always --dirty --abbrev=12)" "$(date -u +%F)"
for row in \
    'latency --size 16' \
    'rate --size 16' \
    'bandwidth --size 64KiB' \
    'bandwidth --size 1MiB' \
    'latency --size 16 --links 1000' \
    'latency --size 16 --mode adaptive' \
    'latency --size 16 --mode blocking' \
    'latency --size 16 --mode blocking --cores 0,0' \
    'idle --links 1000' \
    'crowd' \
    'remote' \
    'protocols --runs 9'
do
    # The words of a row are the arguments of one command.
    # shellcheck disable=SC2086
    "$hamlyn" perf $row --json
done
