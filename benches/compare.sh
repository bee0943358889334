#!/usr/bin/env bash
# silverflow beside what a user would run instead, as a table of ratios. Takes a release build and some minutes; wants a
# quiet machine. Arguments go to compare.py.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release
venv=${CARGO_TARGET_DIR:-target}/peers-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement tests/python/requirements.txt
exec "$venv/bin/python" benches/peers/compare.py "$@"
