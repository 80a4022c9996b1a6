#!/usr/bin/env bash
# Set up what is missing, start Triton, send one prompt, print text as it comes and write the speech, stop Triton.
#
#   scripts/demo.sh ["text"] [directory for the speech]
#
# MODEL and DEPLOY_CONFIG choose what serve.sh takes as --model and --deploy-config.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$ROOT/scripts/runtime_dir.sh"

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
TEXT=${1:-"Hello! Who are you?"}
SPEECH=${2:-speech}
READY_S=1800

check_tmpdir
"$ROOT/scripts/setup.sh"
read -r GRPC_PORT HTTP_PORT METRICS_PORT < <(free_ports 3)
LOG=$(mktemp "$TMPDIR/qwen3-omni-demo.XXXXXX")
SERVER='' CLIENT=''

# The log stays where it explains a failure.
stop() {
    local code=$?
    trap '' INT TERM
    [[ -z $CLIENT ]] || kill "$CLIENT" 2>/dev/null || true
    if [[ -n $SERVER ]]; then
        say "stopping the server"
        kill -TERM "$SERVER" 2>/dev/null || true
        wait "$SERVER" 2>/dev/null || true
    fi
    if ((code == 0)); then rm -f "$LOG"; else say "the server's log is $LOG"; fi
    exit "$code"
}
trap stop EXIT
trap 'exit 130' INT TERM

say "starting Triton on port $GRPC_PORT"
"$ROOT/scripts/serve.sh" --host 127.0.0.1 --grpc-port "$GRPC_PORT" --http-port "$HTTP_PORT" \
    --metrics-port "$METRICS_PORT" ${MODEL:+--model "$MODEL"} ${DEPLOY_CONFIG:+--deploy-config "$DEPLOY_CONFIG"} \
    >"$LOG" 2>&1 &
SERVER=$!

PYTHONPATH=$ROOT "${ENGINE_PYTHON:-$MAIN_ENV/bin/python}" -m client.run --query-type text --prompt "$TEXT" \
    --url "127.0.0.1:$GRPC_PORT" --output-dir "$SPEECH" --sampling server \
    --wait --stage-init-timeout "$READY_S" &
CLIENT=$!
CODE=0
wait -n "$SERVER" "$CLIENT" || CODE=$?
if ! kill -0 "$SERVER" 2>/dev/null; then
    tail -30 "$LOG" >&2
    SERVER=''
    fail "The server ended before it answered (code $CODE); the end of its log is above."
fi
CLIENT=''
exit "$CODE"
