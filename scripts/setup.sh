#!/usr/bin/env bash
# Set up everything that serving and testing need, below .env/ (OMNI_ENV_DIR moves it). Run it as often as you like:
# what is done already is recognised by the hash of its pins, and the script ends in a fraction of a second. A finished
# set-up serves other users too, who need no more than to read it.
#
#   main     torch, vLLM, transformers, the client and the tests' tools: the engines run on it
#   stub     NumPy 1.26, pyzmq, msgspec, PyYAML: Triton's Python stubs run on it
#   triton   tritonserver 2.51.0 and perf_analyzer, unless a tritonserver is on PATH
#
# ENGINE_PYTHON=/path/to/python serves with an interpreter of yours, which has torch and vLLM: main is not built.
# OMNI_PYTHON=/path/to/python3.11 is what the environments are built from.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PLATFORM=$(platform)
NEEDED_GB=6

# ---- the interpreters ----------------------------------------------------------------------------------------------
find_python() {
    local name
    for name in ${OMNI_PYTHON:-python3.11 python3.12 python3}; do
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "No Python 3.11 or 3.12 was found: install one (apt-get install python3.11 python3.11-venv) or name one" \
        "with OMNI_PYTHON."
}

# Somebody else's environment can be used, not mended.
check_writable() {
    [[ -w $OMNI_ENV_DIR ]] || fail "$OMNI_ENV_DIR lacks what this version needs and is not yours to write to: let its" \
        "owner run scripts/setup.sh, or choose another place with OMNI_ENV_DIR."
}

make_venv() { # directory, interpreter
    "$2" -m venv "$1" >&2 || fail "$2 could not make a virtual environment: install its venv package" \
        "(apt-get install python3-venv) and run the script again."
}

# Without byte code: Python writes that for what is imported, a small part of what is installed.
pip_install() { # environment, then pip's arguments
    local environment=$1
    shift
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}

# ---- main ----------------------------------------------------------------------------------------------------------
check_disk() {
    local free_gb
    free_gb=$(($(df --output=avail -k "$OMNI_ENV_DIR" | tail -1) / 1024 / 1024))
    ((free_gb >= NEEDED_GB)) || fail "$OMNI_ENV_DIR has $free_gb GB free and the environments need $NEEDED_GB GB:" \
        "make room or choose another place with OMNI_ENV_DIR."
}

install_main_cpu() {
    local pins=$ROOT/requirements/main-cpu.txt torch site
    torch=$(grep '^torch==' "$pins")
    if ! pip_install "$MAIN_ENV" --no-deps "$torch" 2>/dev/null; then
        say "$torch is not in pip's indexes: taking it from PyTorch's own"
        pip_install "$MAIN_ENV" --no-deps --index-url https://download.pytorch.org/whl/cpu "$torch" ||
            fail "pip could not install $torch: check the network, then run the script again."
    fi
    pip_install "$MAIN_ENV" --no-deps -r "$pins" ||
        fail "pip could not install $pins: check the network and that Python is 3.11, then run the script again."
    site=$("$MAIN_ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp "$ROOT"/scripts/site/omni_torchvision_ops.{py,pth} "$site/"
}

install_main_cuda() {
    local pins=$ROOT/requirements/main-gpu.txt
    pip_install "$MAIN_ENV" -r "$pins" && pip_install "$MAIN_ENV" --no-deps -r "$ROOT/requirements/no-deps.txt" ||
        fail "pip could not install $pins: check the network, then run the script again."
}

set_up_main() {
    local python key
    if [[ -n ${ENGINE_PYTHON:-} ]]; then
        check_engine_python
        return
    fi
    case $PLATFORM in
    cpu) key=$(key_of cpu "$ROOT"/requirements/main-cpu.txt "$ROOT"/scripts/site/omni_torchvision_ops.{py,pth}) ;;
    cuda) key=$(key_of cuda "$ROOT"/requirements/{main-gpu,no-deps}.txt) ;;
    *) fail "There are no pins for the platform $PLATFORM: install torch and vLLM for it and name that interpreter" \
        "with ENGINE_PYTHON." ;;
    esac
    stamp_is main "$key" && return
    check_writable
    check_disk
    python=$(find_python)
    say "building the main environment for $PLATFORM in $MAIN_ENV (some minutes and gigabytes)"
    [[ -x $MAIN_ENV/bin/python ]] || make_venv "$MAIN_ENV" "$python"
    "install_main_$PLATFORM"
    write_stamp main "$key"
}

check_engine_python() {
    local missing
    missing=$("$ENGINE_PYTHON" -c '
import importlib.util
print(*(name for name in ("torch", "vllm", "transformers", "zmq", "msgspec", "yaml")
        if importlib.util.find_spec(name) is None))') ||
        fail "ENGINE_PYTHON is $ENGINE_PYTHON, which does not run: name a working interpreter."
    [[ -z $missing ]] || fail "ENGINE_PYTHON ($ENGINE_PYTHON) lacks $missing: install that or unset ENGINE_PYTHON."
}

# ---- stub ----------------------------------------------------------------------------------------------------------
# A stub takes the site-packages of the python3 that is first on PATH, and must be of the same Python version. serve.sh
# therefore puts this environment first. With a tritonserver from PATH the environment is built from the machine's own
# python3, for which that server's stub was made.
set_up_stub() {
    local python key
    if [[ -z $(installed_tritonserver) ]]; then
        python=$(find_python)
    else
        python=$(command -v python3) || fail "There is a tritonserver on PATH and no python3, which its Python" \
            "backend runs on: install the one that it was built for."
    fi
    key=$(key_of "$ROOT/requirements/stub.txt" "$("$python" -c 'import sys; print(sys.version_info[:2], sys.base_prefix)')")
    stamp_is stub "$key" && [[ -x $STUB_ENV/bin/python ]] && return
    check_writable
    say "building the stubs' environment in $STUB_ENV"
    rm -rf "$STUB_ENV"
    make_venv "$STUB_ENV" "$python"
    pip_install "$STUB_ENV" --no-deps -r "$ROOT/requirements/stub.txt" ||
        fail "pip could not install requirements/stub.txt: check the network, then run the script again."
    write_stamp stub "$key"
}

# ---- triton --------------------------------------------------------------------------------------------------------
unpack_triton() {
    local download=$1 version=$2 backend=$TRITON_DIR/backends/python wheel package
    "$STUB_ENV/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --platform manylinux_2_35_x86_64 --platform manylinux1_x86_64 --dest "$download" \
        -r "$ROOT/requirements/triton.txt" ||
        fail "pip could not download requirements/triton.txt: check the network, then run the script again."
    rm -rf "$TRITON_DIR"
    mkdir -p "$backend"
    for wheel in "$download"/*.whl; do
        "$STUB_ENV/bin/python" -m zipfile -e "$wheel" "$download/$(basename "$wheel" | cut -d- -f1)"
    done
    package=$download/nvidia_pytriton/pytriton/tritonserver
    # tritonserver finds its libraries relative to itself: the wheel's layout is kept.
    mkdir -p "$TRITON_DIR/pytriton/tritonserver"
    mv "$download/nvidia_pytriton/nvidia_pytriton.libs" "$TRITON_DIR/"
    mv "$package/bin" "$TRITON_DIR/pytriton/tritonserver/"
    cp "$package"/backends/python/{libtriton_python.so,triton_python_backend_utils.py} "$backend/"
    cp "$package/python_backend_stubs/$version/triton_python_backend_stub" "$backend/"
    chmod +x "$TRITON_DIR/pytriton/tritonserver/bin/tritonserver" "$backend/triton_python_backend_stub"
    set_up_perf_analyzer "$(echo "$download"/tritonclient/*.data/data/bin/perf_analyzer)"
}

# The wheel's perf_analyzer wants two libraries under their plain names.
set_up_perf_analyzer() {
    local bin=$TRITON_DIR/perf/bin lib=$TRITON_DIR/perf/lib
    mkdir -p "$bin" "$lib"
    cp "$1" "$bin/perf_analyzer.bin"
    ln -sf "$TRITON_DIR"/nvidia_pytriton.libs/libb64-*.so.0d "$lib/libb64.so.0d"
    ln -sf "$TRITON_DIR"/nvidia_pytriton.libs/libcudart-*.so.12.* "$lib/libcudart.so.12"
    cat >"$bin/perf_analyzer" <<'WRAPPER'
#!/usr/bin/env bash
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$here/../lib:$here/../../nvidia_pytriton.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    exec "$here/perf_analyzer.bin" "$@"
WRAPPER
    chmod +x "$bin/perf_analyzer" "$bin/perf_analyzer.bin"
}

missing_libraries() {
    LD_LIBRARY_PATH=$TRITON_DIR/nvidia_pytriton.libs ldd "$TRITON_DIR/backends/python/triton_python_backend_stub" \
        "$TRITON_DIR/pytriton/tritonserver/bin/tritonserver" | awk '/not found/ {print $1}' | sort -u | xargs
}

check_libraries() { # Python version, such as 3.11
    local missing
    missing=$(missing_libraries)
    [[ -n $missing ]] || return 0
    if [[ $missing == "libpython$1.so.1.0" && $EUID == 0 ]] && command -v apt-get >/dev/null; then
        say "installing libpython$1, which Triton's stub needs"
        { apt-get update -qq && apt-get install -y -qq "libpython$1"; } >&2 || true
        missing=$(missing_libraries)
    fi
    [[ -z $missing ]] || fail "Triton does not find $missing: install the packages that hold them" \
        "(Debian and Ubuntu: apt-get install libpython$1) and run the script again."
}

set_up_triton() {
    local key version download
    if [[ -n $(installed_tritonserver) ]]; then
        say "using $(installed_tritonserver), which is on PATH"
        return
    fi
    [[ $(uname -sm) == "Linux x86_64" ]] || fail "Triton is unpacked from a wheel for Linux on x86_64, and this is" \
        "$(uname -sm): run inside a Triton container, whose tritonserver is then used."
    version=$("$STUB_ENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    key=$(key_of "$ROOT/requirements/triton.txt" "$version" "$TRITON_DIR")
    if ! stamp_is triton "$key"; then
        check_writable
        say "unpacking Triton in $TRITON_DIR"
        download=$(mktemp -d "$OMNI_ENV_DIR/download.XXXXXX")
        # shellcheck disable=SC2064  # the path of now
        trap "rm -rf '$download'" EXIT
        unpack_triton "$download" "$version"
        rm -rf "$download"
        check_libraries "$version"
        write_stamp triton "$key"
    fi
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
umask 022  # for other users
[[ -e $OMNI_ENV_DIR/lock ]] || { check_writable && : >>"$OMNI_ENV_DIR/lock"; }
exec 9<"$OMNI_ENV_DIR/lock"  # to be locked it need not be written to
# Servers that start side by side each look for a moment; only a set-up that has work to do is worth a message.
flock --timeout 3 9 || { say "waiting for another set-up in $OMNI_ENV_DIR"; flock 9; }
set_up_stub
set_up_triton
set_up_main
