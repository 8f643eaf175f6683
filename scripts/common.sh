# shellcheck shell=sh
# The common parts of the scripts; sourced by sh from the repository's root.

# An installation by rustup is not always on the PATH of the shell that made it.
PATH="$HOME/.cargo/bin:$PATH"
export PATH

say() { printf '\033[1m== %s\033[0m\n' "$*"; }
loud() { printf '\033[1;33m!! %s\033[0m\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# A trap on EXIT runs in dash only where the shell exits, which a signal alone does not make it do.
exit_on_signals() {
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}
