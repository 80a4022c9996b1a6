#!/usr/bin/env bash
# The tests that need a GPU. Exits with another code than 0 when one is wrong, or when there is no GPU.
# ENGINE_PYTHON names the interpreter; arguments go to pytest: scripts/test_gpu.sh -k talker
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
export PYTHONPATH=$ROOT
exec "${ENGINE_PYTHON:-$MAIN_ENV/bin/python}" -m pytest -n 0 tests/gpu "$@"
