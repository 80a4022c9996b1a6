#!/usr/bin/env bash
# Serve Qwen3-Omni with Triton in the foreground, until SIGINT or SIGTERM.
#
#   scripts/serve.sh [options] [-- more tritonserver options]
#
#   --model PATH|HUB_ID      checkpoint (default: the tiny checkpoint, built if it is missing)
#   --deploy-config YAML     which device each stage runs on: a file, or a profile of python_backends/config/profiles
#   --host ADDRESS           name or address to listen on, such as ::1 (default: all IPv4 addresses of this machine)
#   --grpc-port N            8001; the only one that streams
#   --http-port N            8000
#   --metrics-port N         8002
#   --openai-port N          serve OpenAI's HTTP API there too (python -m client.openai_server has more options)
#   --mps                    engines that share a GPU run on it side by side, through CUDA's Multi-Process Service
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$ROOT/scripts/mps.sh"
source "$ROOT/scripts/runtime_dir.sh"

ORIGINAL=("$@")
MODEL='' MPS='' DEPLOY='' HOST=0.0.0.0 GRPC_PORT=8001 HTTP_PORT=8000 METRICS_PORT=8002 OPENAI_PORT=''
while (($#)); do
    case $1 in
    --model) MODEL=$(value_of "$@") ;;
    --deploy-config) DEPLOY=$(value_of "$@") ;;
    --host) HOST=$(value_of "$@") ;;
    --grpc-port) GRPC_PORT=$(value_of "$@") ;;
    --http-port) HTTP_PORT=$(value_of "$@") ;;
    --metrics-port) METRICS_PORT=$(value_of "$@") ;;
    --openai-port) OPENAI_PORT=$(value_of "$@") ;;
    --mps) MPS=yes; shift; continue ;;
    -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    --) shift; break ;;
    *) fail "There is no option $1; see --help." ;;
    esac
    shift 2
done

# Prints the host as Triton's gRPC endpoint wants it and as the others do: names are resolved, IPv6 is marked.
check_listening() {
    "$STUB_ENV/bin/python" - "$HOST" "gRPC=$GRPC_PORT" "HTTP=$HTTP_PORT" "metrics=$METRICS_PORT" \
        ${OPENAI_PORT:+"openai=$OPENAI_PORT"} <<'PY'
import socket
import sys

given, *named = sys.argv[1:]
host = given[1:-1] if given.startswith("[") and given.endswith("]") else given
try:
    family, _, _, _, (address, *_) = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
except (OSError, UnicodeError) as error:
    sys.exit(f"serve.sh: --host is {given!r}, which is no address of this machine ({error}): give one, or a name of one.")
ports = dict(text.split("=", 1) for text in named)
for name, port in ports.items():
    option = f"--{name.lower()}-port"
    if not port.isdecimal() or not 0 < int(port) < 65536:
        sys.exit(f"serve.sh: {option} is {port!r}, which is no TCP port: give a number from 1 to 65535.")
    if list(ports.values()).count(port) > 1:
        sys.exit(f"serve.sh: {option} is {port}, which another port has too: give each its own.")
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, int(port)))
        except OSError as error:
            sys.exit(f"serve.sh: cannot listen on {given}:{port} for {name} ({error.strerror}): stop what listens "
                     f"there or choose another port with {option}.")
if family == socket.AF_INET6:
    print(f"[{address}] ipv6:{address}")
else:
    print(address, address)
PY
}

# A checkpoint is a directory with a config.json; anything else must look like the hub's OWNER/NAME.
check_model() {
    if [[ -z $MODEL ]]; then
        MODEL=$(tiny_checkpoint)
        [[ -d $MODEL ]] || build_tiny_checkpoint
    elif [[ -d $MODEL ]]; then
        [[ -f $MODEL/config.json ]] || fail "$MODEL holds no config.json: --model wants a checkpoint's directory."
        MODEL=$(cd "$MODEL" && pwd)
    elif ! [[ $MODEL =~ ^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$ ]]; then
        fail "$MODEL is neither a directory nor a hub id like Qwen/Qwen3-Omni-30B-A3B-Instruct."
    fi
}

build_tiny_checkpoint() {
    local partial
    [[ -w $OMNI_ENV_DIR ]] || fail "The tiny checkpoint is not built yet, and $OMNI_ENV_DIR is not yours to write to:" \
        "let its owner run this script once, or name a checkpoint with --model."
    say "building the tiny checkpoint in $MODEL"
    partial=$(mktemp -d "$OMNI_ENV_DIR/tiny.XXXXXX")
    if ! "$ENGINE_PYTHON" "$ROOT/scripts/make_tiny_checkpoint.py" "$partial" >"$partial.log" 2>&1; then
        tail -20 "$partial.log" >&2
        rm -rf "$partial" "$partial.log"
        fail "The tiny checkpoint could not be built, for the reason above."
    fi
    rm -f "$partial.log"
    chmod -R a+rX "$partial"  # others may use this environment
    # Somebody else may have been faster: theirs is the same.
    mv --no-target-directory "$partial" "$MODEL" 2>/dev/null || rm -rf "$partial"
}

# The session id of a process; nothing when it is gone. ps is not on every machine.
session_of() {
    local stat fields
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    read -ra fields <<<"${stat##*) }"
    printf '%s' "${fields[3]}"
}

all_run() {
    local process
    for process in "$@"; do kill -0 "$process" 2>/dev/null || return 1; done
}

clean_up() {
    local process
    for process in $(processes_of "$OMNI_RUNTIME_DIR"); do
        [[ $process != "$$" && $(cat "/proc/$process/comm" 2>/dev/null) != nvidia-cuda-mps* ]] || continue
        # Children of this shell share its environment: only what a server left is another session's.
        [[ $(session_of "$process") == "$SHELL_SESSION" ]] ||
            kill -KILL "$process" 2>/dev/null || true
    done
    [[ -z ${CUDA_MPS_STARTED:-} ]] || stop_mps
    remove_runtime_dir "$OMNI_RUNTIME_DIR"
}

# A path that Triton can put into its stubs' command line: $1, or a link to it from the runtime directory.
linked() {
    local link=$OMNI_RUNTIME_DIR/$2
    needs_quoting "$1" || { printf '%s' "$1" && return; }
    ln -s "$1" "$link" && printf '%s' "$link"
}

[[ -z $MPS ]] || mps_control >/dev/null ||
    fail "--mps needs nvidia-cuda-mps-control, which comes with NVIDIA's driver: install it or leave --mps out."
check_tmpdir
"$ROOT/scripts/setup.sh"
LISTENING=$(check_listening) || exit 1
read -r GRPC_HOST HTTP_HOST <<<"$LISTENING"
export ENGINE_PYTHON=${ENGINE_PYTHON:-$MAIN_ENV/bin/python}
check_model

export OMNI_MODEL=$MODEL OMNI_HOME=$ROOT PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
# Small batches on few cores: more threads than this cost more in waiting than they compute.
[[ $(platform) != cpu ]] || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
SHELL_SESSION=$(session_of $$)
remove_dead_runtime_dirs
new_runtime_dir || fail "No directory could be made in $TMPDIR, for the reason above: make room there or set TMPDIR."
SHM_PREFIX=$(shm_prefix "$OMNI_RUNTIME_DIR")
trap clean_up EXIT
if [[ -n $MPS ]]; then
    start_mps "$OMNI_RUNTIME_DIR/mps" || fail "nvidia-cuda-mps-control did not start: see its message above."
    CUDA_MPS_STARTED=yes
fi

if [[ -n $DEPLOY ]]; then
    [[ ! -f $DEPLOY ]] || DEPLOY=$(realpath "$DEPLOY")
    export OMNI_DEPLOY_CONFIG=$DEPLOY
    REPOSITORY=$OMNI_RUNTIME_DIR/model_repository
    "$STUB_ENV/bin/python" "$ROOT/scripts/render_repository.py" --deploy-config "$DEPLOY" --out "$REPOSITORY" ||
        fail "$DEPLOY is no deploy configuration, for the reason above."
else
    REPOSITORY=$(linked "$ROOT/model_repository" model_repository)
fi

# Triton must take longer to stop than running requests may go on then; options behind -- may say how long.
TIMES=$("$STUB_ENV/bin/python" -m python_backends.config.exit_timeout -- "$@") ||
    fail "The deploy configuration cannot be used, for the reason above."
read -r EXIT_S KILL_S <<<"$TIMES"

TRITON=$(installed_tritonserver)
ARGUMENTS=()
if [[ -z $TRITON ]]; then
    TRITON=$TRITON_DIR/pytriton/tritonserver/bin/tritonserver
    ARGUMENTS+=(--backend-directory "$(linked "$TRITON_DIR/backends" backends)")
    export LD_LIBRARY_PATH=$TRITON_DIR/nvidia_pytriton.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# The configurations are complete: to complete them Triton starts, and ends, a stub of each model before its own. The
# buffers of as many requests and answers as the pool has places stay allocated: large ones add up.
ARGUMENTS+=(
    --model-repository "$REPOSITORY" --disable-auto-complete-config --exit-timeout-secs "$EXIT_S"
    --grpc-infer-allocation-pool-size 1
    --grpc-address "$GRPC_HOST" --grpc-port "$GRPC_PORT"
    --http-address "$HTTP_HOST" --http-port "$HTTP_PORT"
    --metrics-address "$HTTP_HOST" --metrics-port "$METRICS_PORT"
    --backend-config "python,shm-region-prefix-name=$SHM_PREFIX"
    "$@"
)

# Without a fixed threshold glibc raises it to the largest piece that was freed, and then keeps the memory of answers that
# were read late: max_unread_gb would go on to refuse requests.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-131072}
say "serving $OMNI_MODEL on gRPC port $GRPC_PORT"
# A session of its own keeps a terminal's Ctrl-C from the stubs, which must outlive the requests that they serve; the
# death signal ends the server when this script is killed.
PATH=$STUB_ENV/bin:$PATH setsid setpriv --pdeathsig TERM "$TRITON" "${ARGUMENTS[@]}" &
SERVER=$!
BOTH=("$SERVER")
if [[ -n $OPENAI_PORT ]]; then
    NAMES=(qwen3_omni)
    [[ -d $MODEL ]] || NAMES+=("$MODEL")
    setsid setpriv --pdeathsig TERM "$ENGINE_PYTHON" -m client.openai_server --url "$GRPC_HOST:$GRPC_PORT" \
        --host "$GRPC_HOST" --port "$OPENAI_PORT" --served-model-name "${NAMES[@]}" &
    BOTH+=("$!")
fi
STOPPING=''
trap 'STOPPING=yes; kill -TERM "${BOTH[@]}" 2>/dev/null || true' INT TERM
# wait also returns when a signal arrives, long before the server has ended.
while all_run "${BOTH[@]}" && [[ -z $STOPPING ]]; do
    wait -n "${BOTH[@]}" || true
done
# When one ends by itself, so does the other.
[[ -n $STOPPING ]] || kill -TERM "${BOTH[@]}" 2>/dev/null || true
# Triton 2.51 waits for connections that say nothing, after its exit timeout, and was seen to wait for ever.
for ((tenths = 0; tenths < 10 * KILL_S; tenths++)); do
    kill -0 "$SERVER" 2>/dev/null || break
    sleep 0.1
done
kill -KILL "$SERVER" 2>/dev/null && say "the server did not end within $KILL_S s and was killed"
CODE=0
wait "$SERVER" || CODE=$?
# The ends of the last answers are still on their way through it.
[[ ${#BOTH[@]} == 1 ]] || timeout 5 tail --pid="${BOTH[1]}" -s 0.1 -f /dev/null || true
# Of python_backends/serving/lost_start.py: the server had itself killed, as it would never have become ready. Or it aborted
# (134) before it ever served: Triton 2.51 was seen to, with boost's lock_exception, on busy machines.
LOST=''
[[ ! -e $OMNI_RUNTIME_DIR/start.lost ]] || LOST="Triton lost a model that had started"
[[ $CODE != 134 || -e $OMNI_RUNTIME_DIR/start.done ]] || LOST="Triton aborted at its start"
if [[ -n $LOST && -z $STOPPING && ${OMNI_STARTS:-1} -lt 3 ]]; then
    say "$LOST: starting again"
    clean_up
    trap - EXIT INT TERM
    OMNI_STARTS=$((${OMNI_STARTS:-1} + 1)) exec "$ROOT/scripts/serve.sh" "${ORIGINAL[@]}"
fi
# For whatever keeps servers running: an end that nobody asked this script for is a failure, also an orderly one.
[[ -n $STOPPING || $CODE != 0 ]] || { say "the server ended, and nobody had asked for it" && CODE=1; }
exit "$CODE"
