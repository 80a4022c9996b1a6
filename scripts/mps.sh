# CUDA's Multi-Process Service for the engines of one server; source it.
# shellcheck shell=bash
#
# Without it the processes that share a GPU take turns on it; with it their kernels run side by side. Only processes that
# inherit the environment set here use this daemon, and nothing of the card's settings is changed.

mps_control() { command -v nvidia-cuda-mps-control || command -v /usr/local/nvidia/bin/nvidia-cuda-mps-control; }

# Start a daemon whose pipes and logs lie in directory $1. Returns 1 where there is none to start.
start_mps() {
    mps_control >/dev/null || return 1
    mkdir -p "$1"
    export CUDA_MPS_PIPE_DIRECTORY=$1 CUDA_MPS_LOG_DIRECTORY=$1
    "$(mps_control)" -d
}

# End the daemon that start_mps started, once its processes are gone.
stop_mps() { echo quit | timeout 20 "$(mps_control)" >/dev/null || true; }
