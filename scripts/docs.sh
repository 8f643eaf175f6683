#!/bin/sh
# Builds the documentation's site from the repository's Markdown, with Sphinx, and checks its links.
#
#   scripts/docs.sh
#
# Exit status 99: no Python can run Sphinx.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

TARGET="${CARGO_TARGET_DIR:-$PWD/target}"
venv="$TARGET/docs-python" site="$TARGET/site"

have python3 || { loud 'there is no python3'; exit 99; }
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { loud "$(python3 --version) is older than 3.11"; exit 99; }
python3 -m venv "$venv" ||
    { loud 'python3 cannot make a virtual environment (python3-venv)'; exit 99; }
"$venv/bin/pip" install --quiet --disable-pip-version-check -r docs/requirements.txt || exit 1
rm -rf "$site"
"$venv/bin/sphinx-build" -q --fail-on-warning --keep-going -j auto -d "$TARGET/site-read" \
    -c docs . "$site" || { loud 'the documentation is not as it should be: see above'; exit 1; }
echo "   $(find "$site" -name '*.html' | wc -l) pages; begin with $site/index.html"
