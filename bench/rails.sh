#!/bin/sh
# Measures the bandwidth of two rails over two interfaces, each limited by tc, beside one rail: two
# network namespaces, two veth pairs. Needs root, ip, tc, and the command:
#   bench/rails.sh [hamlyn] [Mbit/s] [MiB]
set -eu
hamlyn=${1:-target/release/hamlyn} rate=${2:-200} size=${3:-64}
hamlyn=$(realpath "$hamlyn")
a=hr$$a b=hr$$b dir=$(mktemp -d)
clean() {
    [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
    ip netns del $a 2>/dev/null || true
    ip netns del $b 2>/dev/null || true
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 1' INT TERM
ip netns add $a
ip netns add $b
for i in 1 2; do
    ip link add v$i netns $a type veth peer name v$i netns $b
    for host in 1 2; do
        ns=$a
        [ $host = 1 ] || ns=$b
        ip -n $ns addr add 10.77.$i.$host/24 dev v$i
        ip -n $ns link set v$i up
        ip netns exec $ns tc qdisc add dev v$i root tbf rate "${rate}mbit" burst 64kb latency 50ms
    done
done
ip -n $a link set lo up
ip -n $b link set lo up
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' > "$dir/secret"
chmod 600 "$dir/secret"
echo "bytes 10.77.1.1:7000 10.77.2.1:7000" > "$dir/services"
head -c "${size}M" /dev/urandom > "$dir/bytes"
export HAMLYN_SECRET="$dir/secret" HAMLYN_DIRECTORY="$dir/services"
for rails in 1 2 1 2; do
    HAMLYN_DIR="$dir/a" HAMLYN_RAILS=$rails HAMLYN_LISTEN=0.0.0.0:7000 \
        ip netns exec $a "$hamlyn" recv bytes --output "$dir/copy" 2>/dev/null &
    server=$!
    begun=$(date +%s%N)
    HAMLYN_DIR="$dir/b" HAMLYN_RAILS=$rails \
        ip netns exec $b "$hamlyn" send hamlyn://bytes < "$dir/bytes" 2>/dev/null
    wait $server
    server=
    took=$((($(date +%s%N) - begun) / 1000000))
    cmp "$dir/bytes" "$dir/copy"
    rm "$dir/copy"
    echo "{\"what\": \"rails\", \"rails\": $rails, \"rail_mbit\": $rate, \"mib\": $size, \"ms\": $took," \
        "\"mbit\": $((size * 8388608 / took / 1000))}"
done
