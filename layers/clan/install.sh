#!/bin/sh
# Installs CLAN for C, and the command hamlyn-clan, or takes them away again:
#
#   layers/clan/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# The release build must be there, or the one in HAMLYN_BUILT.
set -eu
cd "$(dirname "$0")/../.."
layer=clan
. layers/common.sh
begin_install

case ${1-} in
    install)
        library 'CLAN on Hamlyn' clan
        [ ! -e "$BUILT/hamlyn-clan" ] || install -m 755 "$BUILT/hamlyn-clan" "$to/bin/"
        ;;
    uninstall) take_away lib/libhamlynclan.so lib/libhamlynclan.a lib/pkgconfig/hamlyn-clan.pc bin/hamlyn-clan ;;
    *) usage ;;
esac
