#!/usr/bin/env bash
# Set up what is missing, then ruff and pytest. Arguments go to pytest: scripts/test.sh tests/talker -k greedy
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$ROOT/scripts/setup.sh"
cd "$ROOT"
export PYTHONPATH=$ROOT OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
PYTHON=${ENGINE_PYTHON:-$MAIN_ENV/bin/python}
say "ruff"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
say "pytest"
exec "$PYTHON" -m pytest "$@"
