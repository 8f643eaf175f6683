#!/bin/sh
# Runs a test program if it tests the command (HAMLYN_TESTS=command) or if it does not (rest). cargo
# calls this in its place, so that two steps can run the tests of one build beside each other.
case "$CARGO_PKG_NAME" in
    hamlyn-cli) of=command ;;
    *) of=rest ;;
esac
[ "$of" = "$HAMLYN_TESTS" ] || exit 0
exec "$@"
