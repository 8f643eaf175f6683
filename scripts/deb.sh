#!/bin/sh
# Makes a Debian package with the files of `make install`, from the existing release build.
#
#   scripts/deb.sh build    into the target directory; the last line of output is its path
#   scripts/deb.sh try      .. and installs, uses and removes it in a minimal system of its own
#
# Exit status 99: a tool or a right for it is missing.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

cannot() { loud "$*"; exit 99; }
TARGET="${CARGO_TARGET_DIR:-$PWD/target}"
for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture; do
    have $tool || cannot "there is no $tool (dpkg-dev)"
done
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
ARCHITECTURE=$(dpkg-architecture -qDEB_HOST_ARCH)
MULTIARCH=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
LIBRARIES=/usr/lib/$MULTIARCH
PACKAGE="$TARGET/hamlyn_${VERSION}_$ARCHITECTURE.deb"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exit_on_signals

# Where Debian has other places than `make install`.
staged() {
    root="$work/package"
    env -u INCLUDEDIR -u DATADIR -u BINDIR -u MANDIR DESTDIR="$root" PREFIX=/usr \
        LIBDIR="$LIBRARIES" TMPFILESDIR=/usr/lib/tmpfiles.d capi/install.sh install >/dev/null
    [ -x "$root/usr/bin/hamlyn" ] || { loud 'the command is not built: make build'; exit 1; }
    strip --strip-debug "$root/usr/bin/hamlyn"
    chmod 644 "$root$LIBRARIES/libhamlyn.so.$VERSION"
    mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
    gzip -9n "$root"/usr/share/man/man1/*.1
    doc="$root/usr/share/doc/hamlyn"
    install -d "$doc"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    { printf 'MIT or Apache-2.0, as you choose; the latter is in %s.\n\n' \
        /usr/share/common-licenses/Apache-2.0; cat LICENSE-MIT; } >"$doc/copyright"
    chmod 644 "$doc"/*
}

# The package's description, and the scripts that run beside unpacking.
controlled() {
    mkdir -p "$work/package/DEBIAN" "$work/debian"
    printf 'Source: hamlyn\n\nPackage: hamlyn\nArchitecture: any\n' >"$work/debian/control"
    needed=$(cd "$work" && dpkg-shlibdeps -O \
        package/usr/bin/hamlyn "package$LIBRARIES/libhamlyn.so.$VERSION" 2>"$work/said") ||
        { cat "$work/said" >&2; exit 1; }
    cat >"$work/package/DEBIAN/control" <<END
Package: hamlyn
Version: $VERSION
Architecture: $ARCHITECTURE
Maintainer: The Hamlyn authors <hamlyn@localhost>
Section: net
Priority: optional
Depends: ${needed#shlibs:Depends=}
Installed-Size: $(du -sk "$work/package/usr" | cut -f1)
Description: messages between programs that do not trust one another
 The hamlyn command, the C and C++ library with its headers, and its files for
 pkg-config and CMake. Programs on one machine exchange messages through memory;
 each receiver checks key and bounds of what it is sent.
 .
 Services for other users need a directory in /run/hamlyn: see hamlyn-setup(1).
END
    echo 'activate-noawait ldconfig' >"$work/package/DEBIAN/triggers"
    cat >"$work/package/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemd-tmpfiles --create hamlyn.conf || true
fi
END
    # Directories with names of services stay.
    cat >"$work/package/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/hamlyn ]; then
    rmdir --ignore-fail-on-non-empty /run/hamlyn
fi
END
    chmod 755 "$work/package/DEBIAN/postinst" "$work/package/DEBIAN/postrm"
    (cd "$work/package" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
}

# How hard to compress it, from 1 to 9: a try is over sooner with less.
build() {
    staged
    controlled
    dpkg-deb -Zxz "-z$1" --root-owner-group --build "$work/package" "$PACKAGE" >/dev/null
}

# The essential packages of this machine's distribution, as an archive that is kept.
bare_system() {
    [ "$(id -u)" = 0 ] || cannot 'only root can make a bare system and run programs in it'
    have mmdebstrap || cannot 'there is no mmdebstrap'
    have unshare || cannot 'there is no unshare (util-linux)'
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
    archive="$TARGET/bare-$suite.tar"
    [ ! -s "$archive" ] || return 0
    mirror=$(apt-get indextargets --format "\$(REPO_URI)" 'Created-By: Packages' \
        "Codename: $suite" | head -n 1)
    [ -n "$mirror" ] || cannot "apt knows of no mirror of '$suite'"
    mmdebstrap --quiet --variant=essential --format=tar "$suite" "$archive.part" "$mirror" &&
        mv "$archive.part" "$archive" || cannot "no bare system of $suite can be made"
}

# Files that dpkg and ldconfig write for themselves are no part of the package.
files() {
    (cd "$work/bare" && find . -xdev ! -path './proc/*' ! -path './var/lib/dpkg/*-old' \
        ! -path './var/log/*' ! -path './var/cache/ldconfig*' | sort)
}

# As a user of the bare system would, with the devices and the processes that it needs.
inside() {
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child sh -euc 'mount --rbind /dev "$0/dev"
        mount -t proc proc "$0/proc"
        exec chroot "$0" "$@"' "$work/bare" "$@"
}

try() {
    bare_system
    mkdir "$work/bare"
    tar -C "$work/bare" --exclude='./dev/*' -xf "$archive"
    mkdir -p "$work/bare/run/hamlyn"
    echo "   a bare system of $suite, $(files | wc -l) files"
    files | grep -vx ./run/hamlyn >"$work/before"
    dpkg --root="$work/bare" --install "$PACKAGE" >"$work/said" 2>&1 ||
        { cat "$work/said"; exit 1; }
    # A program against it, as on a developer's machine; it finds the library without being told.
    export PKG_CONFIG_SYSROOT_DIR="$work/bare" PKG_CONFIG_LIBDIR="$work/bare$LIBRARIES/pkgconfig"
    for program in hello call; do
        # shellcheck disable=SC2046
        cc -std=c99 -pthread -o "$work/bare/tmp/$program" "capi/examples/$program.c" \
            $(pkg-config --cflags --libs hamlyn)
        inside "/tmp/$program"
        rm "$work/bare/tmp/$program"
    done
    inside sh -euc 'hamlyn --version
        export HAMLYN_DIR=/tmp/names
        hamlyn recv parcel --output /tmp/copy >/dev/null 2>&1 & hamlyn send parcel </bin/sh
        wait $! && cmp /tmp/copy /bin/sh && echo "a file from one process to another: identical"
        rm -r /tmp/names /tmp/copy'
    for file in usr/share/man/man1/hamlyn-stat.1.gz usr/lib/tmpfiles.d/hamlyn.conf \
        usr/share/bash-completion/completions/hamlyn "$LIBRARIES/cmake/hamlyn/hamlynConfig.cmake"
    do
        [ -s "$work/bare/$file" ] || { loud "the package has no $file"; exit 1; }
    done
    dpkg --root="$work/bare" --purge hamlyn >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
    files >"$work/after"
    diff "$work/before" "$work/after" || { loud 'what the package left, or took with it'; exit 1; }
    echo '   removed, and nothing of it is left'
}

case ${1-} in
    build) build 6 ;;
    try)
        build 1
        try
        ;;
    *) echo 'build or try?' >&2; exit 1 ;;
esac
echo "   $PACKAGE"
