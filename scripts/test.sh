#!/usr/bin/env bash
# Set up what is missing, then ruff, mypy, shellcheck and pytest. Arguments go to pytest: scripts/test.sh tests/talker -k greedy
# The whole suite runs on two workers; -n 0 runs it in one process, as do arguments that name files or directories.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$ROOT/scripts/setup.sh"
cd "$ROOT"
export PYTHONPATH=$ROOT OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
PYTHON=${ENGINE_PYTHON:-$MAIN_ENV/bin/python}
KEY=$(key_of "$ROOT/requirements/unpacked.txt")
if ! stamp_is unpacked "$KEY"; then
    say "unpacking what the tests read in $OMNI_ENV_DIR/unpacked"
    rm -rf "$OMNI_ENV_DIR/unpacked"
    "$STUB_ENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
        --target "$OMNI_ENV_DIR/unpacked" -r "$ROOT/requirements/unpacked.txt" ||
        fail "pip could not install requirements/unpacked.txt: check the network, then run the script again."
    write_stamp unpacked "$KEY"
fi
"$ROOT/scripts/lint.sh"
# Two also where there are more cores: the tests of the real server follow one another, and take half of all time.
WORKERS=(-n 2 --dist loadscope --no-loadscope-reorder)
for argument in "$@"; do
    [[ ! -e ${argument%%::*} ]] || WORKERS=()
done
say "pytest"
exec "$PYTHON" -m pytest "${WORKERS[@]}" "$@"
