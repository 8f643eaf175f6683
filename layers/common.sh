# shellcheck shell=sh
# The common parts of the layers' scripts, sourced by sh from the repository's root; `layer` is the layer's folder.

# ---- test.sh

# begin_test [DIR]: sets `built`, a folder `work` that goes at the end, and a directory of names in it
begin_test() {
    built=$(cd "${1:-${CARGO_TARGET_DIR:-target}/debug}" && pwd)
    command -v cc >/dev/null 2>&1 || exit 99
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    export HAMLYN_DIR="$work/dir"
    mkdir -m 700 "$HAMLYN_DIR"
}

install_here() {
    PREFIX="$work/prefix" HAMLYN_BUILT="$built" "layers/$layer/install.sh" install
    export PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig"
}

# installed PACKAGE SOURCE PROGRAM [OPTIONS]: as a user compiles it
installed() {
    package=$1 source=$2 program=$3
    shift 3
    # shellcheck disable=SC2046
    cc -Wall "$@" "$source" -o "$work/$program" $(pkg-config --cflags --libs "$package") -Wl,-rpath,"$work/prefix/lib" -lm
}

# Nothing of the installation may stay.
uninstall_here() {
    PREFIX="$work/prefix" "layers/$layer/install.sh" uninstall
    [ -z "$(find "$work/prefix" -type f)" ] || { echo "uninstall leaves $(find "$work/prefix" -type f)" >&2; exit 1; }
}

# ---- install.sh install|uninstall, with PREFIX and DESTDIR as for `make install`

# What is installed is the release build, or the one in HAMLYN_BUILT.
begin_install() {
    PREFIX=${PREFIX:-/usr/local}
    DESTDIR=${DESTDIR-}
    BUILT=${HAMLYN_BUILT:-${CARGO_TARGET_DIR:-target}/release}
    VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    to=$DESTDIR$PREFIX
}

# library DESCRIPTION HEADERS ..: the layer's own, with its package file
library() {
    [ -e "$BUILT/libhamlyn_$layer.so" ] || { echo "$BUILT/libhamlyn_$layer.so is not built" >&2; exit 1; }
    install -d "$to/lib/pkgconfig" "$to/include/hamlyn-$layer" "$to/bin"
    install -m 755 "$BUILT/libhamlyn_$layer.so" "$to/lib/libhamlyn$layer.so"
    install -m 644 "$BUILT/libhamlyn_$layer.a" "$to/lib/libhamlyn$layer.a"
    pc "hamlyn-$layer" "$1" "-lhamlyn$layer"
    shift
    for header; do install -m 644 "layers/$layer/include/$header.h" "$to/include/hamlyn-$layer/"; done
}

# pc NAME DESCRIPTION LIBRARIES [PACKAGES THAT IT REQUIRES]
pc() {
    cat >"$to/lib/pkgconfig/$1.pc" <<END
prefix=$PREFIX
Name: $1
Description: $2
Version: $VERSION
Requires: ${4-}
Libs: -L\${prefix}/lib $3
Cflags: -I\${prefix}/include/hamlyn-$layer
END
}

# take_away FILES ..: these, and the layer's headers
take_away() {
    rm -rf "$to/include/hamlyn-$layer"
    for file; do rm -f "$to/$file"; done
}

usage() {
    sed -n '2,/^set/{/^#/p}' "$0" >&2
    exit 2
}
