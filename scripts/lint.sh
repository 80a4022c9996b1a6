#!/usr/bin/env bash
# ruff, mypy and shellcheck: what scripts/test.sh and .pre-commit-config.yaml run. One of them: scripts/lint.sh mypy
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
PYTHON=${ENGINE_PYTHON:-$MAIN_ENV/bin/python}

run_ruff() { "$PYTHON" -m ruff check . && "$PYTHON" -m ruff format --check .; }
run_mypy() { "$PYTHON" -m mypy; }
run_shellcheck() {
    local scripts
    mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
    "$(dirname "$PYTHON")/shellcheck" --severity warning "${scripts[@]}"
}

(($#)) || set -- ruff mypy shellcheck
for tool in "$@"; do
    say "$tool"
    "run_$tool"
done
