#!/bin/sh
# Installs VMMC for C, NX and BSP, or takes them away again:
#
#   layers/vmmc/install.sh install|uninstall      with PREFIX and DESTDIR as for `make install`
#
# The release build must be there (or another, in the folder HAMLYN_BUILT). Without a C compiler, NX and BSP are
# left out.
set -eu
cd "$(dirname "$0")/../.."
layer=vmmc
. layers/common.sh
begin_install

case ${1-} in
    install)
        library 'Virtual memory-mapped communication on Hamlyn' vmmc
        if ! command -v cc >/dev/null 2>&1; then
            echo 'no C compiler: NX and BSP over VMMC are left out'
            exit 0
        fi
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        for source in vmmc/pairs/pairs vmmc/nx/nx vmmc/nx/global match/match vmmc/bsp/bsp; do
            cc -std=gnu11 -O2 -fPIC -Ilayers/vmmc/include -c layers/$source.c -o "$work/$(basename $source).o"
        done
        rm -f "$to/lib/libhamlynnx.a" "$to/lib/libhamlynbsp.a"
        (cd "$work" && ar rcs nx.a nx.o global.o match.o pairs.o && ar rcs bsp.a bsp.o pairs.o)
        for name in nx bsp; do
            install -m 644 "$work/$name.a" "$to/lib/libhamlyn$name.a"
            install -m 644 layers/vmmc/$name/$name.h "$to/include/hamlyn-vmmc/"
        done
        pc hamlyn-nx 'NX over VMMC on Hamlyn' '-lhamlynnx -lhamlynvmmc'
        pc hamlyn-bsp 'BSPlib over VMMC on Hamlyn' '-lhamlynbsp -lhamlynvmmc'
        ;;
    uninstall)
        take_away lib/libhamlynvmmc.so
        for name in vmmc nx bsp; do rm -f "$to/lib/libhamlyn$name.a" "$to/lib/pkgconfig/hamlyn-$name.pc"; done
        ;;
    *) usage ;;
esac
