# The directory of one server's sockets, in TMPDIR; source it.
# shellcheck shell=bash
#
# Whoever makes one keeps it open and locked, and so do the server and its stubs, which inherit the descriptor: a
# directory that can be locked is nobody's, however its server ended.

# A socket's path has 107 characters at most: /qwen3-omni.XXXXXX are 18 of them, /thinker-63, which is an engine's own
# TMPDIR there, 11, and the longest name in that, of vLLM between its worker processes, 37.
MAX_TMPDIR=$((107 - 18 - 11 - 37))

# Whether a shell would read more in path $1 than its characters: Triton writes paths unquoted into a command line.
needs_quoting() { [[ $1 == *[[:space:]\"\'\`\\\$\&\|\;\<\>\(\)\*\?\[\]\{\}]* ]]; }

check_tmpdir() {
    local given=${TMPDIR:-/tmp}
    [[ -d $given && -w $given && -x $given ]] ||
        fail "TMPDIR is $given, which is no directory to write to: make it or set TMPDIR to another one."
    TMPDIR=$(cd "$given" && pwd)
    export TMPDIR
    ! needs_quoting "$TMPDIR" || fail "TMPDIR is $TMPDIR, and Triton takes no path with white space or characters" \
        "that a shell interprets: set TMPDIR to another directory, such as /tmp."
    ((${#TMPDIR} <= MAX_TMPDIR)) || fail "TMPDIR has ${#TMPDIR} characters, and more than $MAX_TMPDIR make the" \
        "sockets' names too long: set TMPDIR to a shorter one, such as /tmp."
}

# Processes whose environment names runtime directory $1: those of its server and no other's.
processes_of() {
    grep --text --null-data --line-regexp --fixed-strings --files-with-matches \
        "OMNI_RUNTIME_DIR=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true
}

# What the names of a server's shared memory begin with.
shm_prefix() { printf 'omni_%s_' "${1##*.}"; }

# Remove runtime directory $1 and its server's shared memory: Triton's, and that of vLLM's workers on a CPU, whose names
# begin with that of a file in their engine's TMPDIR.
remove_runtime_dir() {
    local file
    for file in "$1"/*/vllm_dist_*; do
        rm -f /dev/shm/"${file##*/}"-*
    done
    rm -rf "$1" /dev/shm/"$(shm_prefix "$1")"*
}

# Remove what this user's servers left in TMPDIR that were killed: sockets, and the temporary files of their engines.
remove_dead_runtime_dirs() {
    local directory
    for directory in "$TMPDIR"/qwen3-omni.??????; do
        [[ -d $directory && ! -L $directory && -O $directory ]] || continue
        (
            # Held until it is removed: new_runtime_dir looks again once it has the lock.
            { exec 8<"$directory"; } 2>/dev/null && flock --nonblock 8 || exit 0
            [[ -z $(processes_of "$directory") ]] || exit 0
            remove_runtime_dir "$directory"
        )
    done
}

# Make a runtime directory, locked with descriptor 8, and export OMNI_RUNTIME_DIR.
new_runtime_dir() {
    OMNI_RUNTIME_DIR=''
    until [[ -d $OMNI_RUNTIME_DIR ]]; do
        OMNI_RUNTIME_DIR=$(mktemp -d "$TMPDIR/qwen3-omni.XXXXXX") || return 1
        { exec 8<"$OMNI_RUNTIME_DIR"; } 2>/dev/null || continue
        flock 8
    done
    export OMNI_RUNTIME_DIR
}
