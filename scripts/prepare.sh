#!/bin/sh
# Installs a C linker and Rust if the machine lacks them for a build. Reports each action, and does
# nothing if nothing is missing.
#
#   scripts/prepare.sh           for a build
#   scripts/prepare.sh python    .. of the Python package, too
#   scripts/prepare.sh test      for every test, without the tools of single steps of `make deep`
#   scripts/prepare.sh launchers other launchers of jobs, for the step of that name
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
apt_update() {
    [ -z "$apt_updated" ] || return 0
    say 'apt-get update'
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update ||
        loud 'it failed; going on with the lists of packages that are here'
    apt_updated=1
}

# Installed packages stay: a package that conflicts with one is refused.
apt_install() {
    have apt-get || { loud "install $* by this system's own means, then try again"; return 1; }
    apt_update
    say "apt-get install $*"
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends --no-remove install "$@" >/dev/null
}

# The version of a package that would be installed; empty without one.
apt_version() {
    have apt-cache || return 0
    LC_ALL=C apt-cache policy "$1" 2>/dev/null |
        sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9].*\)/\2/p'
}

rust_is_new_enough() {
    hash -r
    have cargo && have rustc || return 1
    minor=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge "$RUST_MINOR_MIN" ]
}

# The distribution's own. In a stable Debian the plain packages are old, and those that its browsers
# are built with are not.
rust_by_apt() {
    have apt-get || return 1
    apt_update
    for suffix in '' -web; do
        minor=$(apt_version "rustc$suffix" | sed -n 's/^1\.\([0-9]*\)\..*/\1/p')
        if [ -n "$minor" ] && [ "$minor" -ge "$RUST_MINOR_MIN" ] &&
            [ -n "$(apt_version "cargo$suffix")" ]; then
            apt_install "rustc$suffix" "cargo$suffix" && return 0
        fi
    done
    return 1
}

rustup_by_itself() {
    have curl || apt_install curl ca-certificates || return 1
    say "the Rust project's own installer, into ~/.cargo and ~/.rustup"
    installer=$(mktemp)
    trap 'rm -f "$installer"' EXIT
    exit_on_signals
    for address in https://sh.rustup.rs https://static.rust-lang.org/rustup/rustup-init.sh; do
        if curl --proto '=https' --tlsv1.2 -sSfL --connect-timeout 20 "$address" -o "$installer"
        then
            sh "$installer" -y --profile minimal --default-toolchain stable --no-modify-path
            return
        fi
    done
    loud "cannot fetch it: install Rust 1.$RUST_MINOR_MIN or later by hand, then try again"
    return 1
}

have cc || apt_install gcc libc6-dev

if ! rust_is_new_enough; then
    say "no Rust of 1.$RUST_MINOR_MIN or later here"
    if ! have rustup && ! rust_by_apt; then
        if [ -z "$(apt_version rustup)" ] || ! apt_install rustup; then rustup_by_itself; fi
    fi
    if ! rust_is_new_enough && have rustup; then
        say 'rustup toolchain install stable'
        rustup toolchain install stable --profile minimal --no-self-update
        rust_is_new_enough || rustup default stable
    fi
    rust_is_new_enough || { loud "still no Rust of 1.$RUST_MINOR_MIN or later"; exit 1; }
fi

if [ "${1-}" = python ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3 python3-venv
fi

if [ "${1-}" = test ] || [ "${1-}" = deep ]; then
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        say 'rustfmt and clippy'
        if have rustup; then rustup component add rustfmt clippy
        elif dpkg-query -W rustc-web >/dev/null 2>&1; then apt_install rustfmt-web rust-web-clippy
        else apt_install rustfmt rust-clippy
        fi
    fi
    have git || apt_install git
    # For the tests of the C library; without the right to install it, the others still run.
    have c++ || apt_install g++ || loud 'no C++ compiler: the steps c and sanitizers will fail'
    have pkg-config || apt_install pkg-config || loud 'no pkg-config: the steps c and sanitizers will fail'
    have valgrind || apt_install valgrind libc6-dbg ||
        loud 'no valgrind: budgets will be skipped, and sanitizers will fail'
    # Without these some tests of links to other hosts are skipped, loudly.
    { have ip && { have nft || [ -x /usr/sbin/nft ]; }; } || apt_install iproute2 nftables || true
    ls /usr/lib/*/libfabric.so.1 >/dev/null 2>&1 || apt_install libfabric1 || true
    # Without these ONC RPC and VMMC's renderer are skipped, loudly.
    { have rpcgen && pkg-config --exists libtirpc libpng; } || apt_install libtirpc-dev rpcsvc-proto libpng-dev || true
    # Without it the steps `python` and `wheel` are skipped, loudly; nothing else needs it.
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv || true
fi

# Without these the steps `deb` and `aarch64`, the look at the report and single parts of the step `sanitizers` are
# skipped, loudly.
if [ "${1-}" = deep ]; then
    have dpkg-shlibdeps && have mmdebstrap || apt_install dpkg-dev mmdebstrap || true
    have cmake || apt_install cmake make || loud 'no cmake: its package files will not be tried'
    [ -e /usr/include/uv.h ] && [ -e /usr/include/asio.hpp ] || apt_install libuv1-dev libasio-dev || true
    pkg-config --exists glib-2.0 || apt_install libglib2.0-dev || true
    have qemu-aarch64 && have aarch64-linux-gnu-gcc ||
        apt_install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross || true
    have chromium || have chromium-browser || apt_install chromium || true
fi

# Launchers of jobs. Without them the step `launchers` skips their tests, loudly.
missing() {
    for package; do
        dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q ' installed$' || echo "$package"
    done
}
if [ "${1-}" = launchers ] && have dpkg-query; then
    # Slurm looks for libpmix.so, which is in the package for developers.
    # shellcheck disable=SC2046
    set -- $(missing openmpi-bin libpmix2 libpmix-dev openssh-client)
    [ $# = 0 ] || apt_install "$@" || loud "not installed: $*"
    # shellcheck disable=SC2046
    set -- $(missing openssh-server munge slurmd slurmctld slurm-client slurm-wlm-basic-plugins)
    # The tests run servers of their own; the system's are not to be started.
    policy=/usr/sbin/policy-rc.d
    if [ $# = 0 ]; then :
    elif [ -d /run/systemd/system ]; then
        loud "not installed, because this system would start them: $*"
    elif [ -e "$policy" ]; then apt_install "$@" || loud "not installed: $*"
    else
        trap 'as_root rm -f "$policy"' EXIT
        exit_on_signals
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        apt_install "$@" || loud "not installed: $*"
    fi
fi
