#!/usr/bin/env bash
# scripts/serve.sh for a machine on which nothing can be installed: vLLM and Triton come from an unpacked bundle.
#   [MPS=on] BUNDLE=PREFIX serve.sh --model DIR --deploy-config YAML --grpc-port N --http-port N --metrics-port N
# PREFIX/env.sh sets ENGINE_PYTHON, PYTHONPATH and tritonserver_run, and makes the stubs' environment.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
engine_python=${ENGINE_PYTHON:-}
source "$BUNDLE/env.sh"
export ENGINE_PYTHON=${engine_python:-$ENGINE_PYTHON}
declare -A option
while (($#)); do
    option[${1#--}]=$2
    shift 2
done
source "$ROOT/scripts/runtime_dir.sh"
TMPDIR=${TMPDIR:-/tmp} new_runtime_dir
export OMNI_MODEL=${option[model]} OMNI_DEPLOY_CONFIG=${option[deploy-config]} OMNI_HOME=$ROOT
if [[ ${MPS:-off} == on ]]; then
    source "$ROOT/scripts/mps.sh"
    start_mps "$OMNI_RUNTIME_DIR/mps"
fi
# Engine processes get a PYTHONPATH of their own, with this appended.
export ENGINE_PYTHONPATH=${PYTHONPATH:-} PYTHONUTF8=1
PYTHONPATH=$ROOT "$BUNDLE/stubenv/bin/python3" "$ROOT/scripts/render_repository.py" \
    --deploy-config "$OMNI_DEPLOY_CONFIG" --out "$OMNI_RUNTIME_DIR/model_repository"
times=$(PYTHONPATH=$ROOT "$BUNDLE/stubenv/bin/python3" -m python_backends.config.exit_timeout)
unset PYTHONPATH
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-131072}
(tritonserver_run --model-repository "$OMNI_RUNTIME_DIR/model_repository" \
    --disable-auto-complete-config --grpc-infer-allocation-pool-size 1 --exit-timeout-secs "${times% *}" \
    --grpc-port "${option[grpc-port]}" --http-port "${option[http-port]}" --metrics-port "${option[metrics-port]}") &
server=$!
# The subshell's only child is the server itself.
trap 'pkill -TERM -P $server || kill -TERM $server' TERM INT
while kill -0 $server 2>/dev/null; do wait $server || true; done
[[ ${MPS:-off} != on ]] || stop_mps
remove_runtime_dir "$OMNI_RUNTIME_DIR"
