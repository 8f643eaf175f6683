#!/bin/sh
# Installs what a build needs and the machine lacks: a C linker and Rust. Says each thing that it
# does, and does nothing where nothing is missing.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

# The same as `rust-version` in Cargo.toml.
RUST_MINOR_MIN=88

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif have sudo; then sudo "$@"
    else loud "need to run as root: $*"; return 1
    fi
}

apt_updated=
apt_install() {
    have apt-get || { loud "install $* by this system's own means, then try again"; return 1; }
    if [ -z "$apt_updated" ]; then
        say 'apt-get update'
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
        apt_updated=1
    fi
    say "apt-get install $*"
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends install "$@" >/dev/null
}

apt_offers() {
    have apt-cache && apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [0-9]'
}

rust_is_new_enough() {
    have cargo && have rustc || return 1
    minor=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge "$RUST_MINOR_MIN" ]
}

have cc || apt_install gcc libc6-dev

if ! rust_is_new_enough; then
    say "no Rust of 1.$RUST_MINOR_MIN or later here"
    if ! have rustup && [ -n "$(apt_offers rustup && echo yes)" ]; then
        apt_install rustup
    fi
    if ! have rustup && have apt-get && [ -z "$apt_updated" ]; then
        # A fresh image may know no packages at all yet.
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update && apt_updated=1
        if apt_offers rustup; then apt_install rustup; fi
    fi
    if ! have rustup; then
        # Older Debian releases have neither rustup nor a Rust that is new enough.
        have curl || apt_install curl ca-certificates
        say "the Rust project's own installer, into ~/.cargo and ~/.rustup"
        installer=$(mktemp)
        trap 'rm -f "$installer"' EXIT
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs -o "$installer" || {
            loud "cannot fetch it: install Rust 1.$RUST_MINOR_MIN or later by hand, then try again"
            exit 1
        }
        sh "$installer" -y --profile minimal --no-modify-path
    fi
    if ! rust_is_new_enough; then
        say 'rustup toolchain install stable'
        rustup toolchain install stable --profile minimal
        rustup default stable
    fi
    rust_is_new_enough || { loud "still no Rust of 1.$RUST_MINOR_MIN or later"; exit 1; }
fi

if [ "${1-}" = test ]; then
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        say 'rustfmt and clippy'
        if have rustup; then rustup component add rustfmt clippy
        else apt_install rustfmt rust-clippy
        fi
    fi
    have git || apt_install git
    # What the tests of the C library need; who cannot install it still runs the others.
    have c++ || apt_install g++ || loud 'no C++ compiler: the step c will fail'
    have pkg-config || apt_install pkg-config || loud 'no pkg-config: the step c will fail'
    have valgrind || apt_install valgrind libc6-dbg || loud 'no valgrind: the step c will fail'
    # Without it the step `python` is skipped, loudly; nothing else needs it.
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv || true
fi
