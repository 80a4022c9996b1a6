# Shared by the scripts of this directory; source it.
# shellcheck shell=bash

# One order of file names on every machine.
export LC_ALL=C PYTHONUTF8=1
# Without byte code each engine process compiles torch, transformers and vLLM at its start: 26 s of imports for 13 s.
unset PYTHONDONTWRITEBYTECODE
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OMNI_ENV_DIR=${OMNI_ENV_DIR:-$ROOT/.env}
mkdir -p "$OMNI_ENV_DIR"
OMNI_ENV_DIR=$(cd "$OMNI_ENV_DIR" && pwd)
export OMNI_ENV_DIR

MAIN_ENV=$OMNI_ENV_DIR/main
STUB_ENV=$OMNI_ENV_DIR/stub
TRITON_DIR=$OMNI_ENV_DIR/triton
STAMPS=$OMNI_ENV_DIR/stamps

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# One sentence that says what is wrong and what to do; then the end.
fail() {
    say "$*"
    exit 1
}

# The value of the option that "$1" names; fails when the command line ends before it.
value_of() { [[ $# -ge 2 ]] && printf '%s' "$2" || fail "$1 needs a value; see --help."; }

# Hash of its arguments: the contents of those that are files, the text of the others.
key_of() {
    local item
    for item in "$@"; do
        if [[ -f $item ]]; then cat "$item"; else printf '%s\n' "$item"; fi
    done | sha256sum | cut -c1-16
}

stamp_is() { [[ -f $STAMPS/$1 && $(<"$STAMPS/$1") == "$2" ]]; }

write_stamp() { mkdir -p "$STAMPS" && printf '%s\n' "$2" >"$STAMPS/$1"; }

# cuda, cpu, or another platform of python_backends/config/platforms.py that OMNI_PLATFORM names.
platform() {
    if [[ -n ${OMNI_PLATFORM:-} ]]; then
        printf '%s' "$OMNI_PLATFORM"
    elif command -v nvidia-smi >/dev/null || [[ -e /dev/nvidiactl ]]; then
        printf cuda
    else
        printf cpu
    fi
}

# An installed tritonserver (an NGC container has one) is preferred to the one that set-up unpacks.
installed_tritonserver() { command -v tritonserver || true; }

# Where the tiny checkpoint of the present code lies; tests/conftest.py computes the same path.
tiny_checkpoint() {
    printf '%s/tiny-%s' "$OMNI_ENV_DIR" \
        "$(cat "$ROOT"/scripts/make_tiny_checkpoint.py "$ROOT"/scripts/tiny_checkpoint/*.* | sha256sum | cut -c1-16)"
}

# N different free TCP ports of 127.0.0.1, on one line; below those that the system gives to whoever asks for any, so that
# nobody takes one before the server does.
free_ports() {
    "$STUB_ENV/bin/python" - "$1" <<'PY'
import random
import socket
import sys

found = []
while len(found) < int(sys.argv[1]):
    port = random.randrange(20000, 32000)
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
    found += [port] * (port not in found)
print(*found)
PY
}
