#!/bin/sh
# Takes the figures of one machine in bench/RESULTS.md, one after another. The machine must be idle
# otherwise. Prints rows of JSON: first a description of the machine, then a row for each figure, those
# of the curve and of the protocols from one command each. Takes about ten minutes.
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
    'latency --size 64 --beside 16' \
    'rate --size 16' \
    'rate --size 64 --beside 16' \
    'curve' \
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
