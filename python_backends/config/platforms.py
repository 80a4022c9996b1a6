"""Which kind of accelerator this machine has, found without importing torch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PLATFORMS = ("cuda", "rocm", "npu", "xpu", "musa", "cpu")
VISIBLE_DEVICES = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "musa": "MUSA_VISIBLE_DEVICES",
}
# torch calls AMD's devices cuda too.
TORCH_DEVICE = {"rocm": "cuda"}
_SIGNS = (
    ("cuda", "nvidia-smi", "/dev/nvidiactl"),
    ("rocm", "rocm-smi", "/dev/kfd"),
    ("npu", "npu-smi", "/dev/davinci_manager"),
    ("musa", "mthreads-gmi", "/dev/mtgpu.0"),
    ("xpu", "xpu-smi", ""),
)


def detect_platform() -> str:
    """`OMNI_PLATFORM` if set, else the first whose management tool or device node is here, else "cpu".

    Raises ValueError for an unknown `OMNI_PLATFORM`.
    """
    named = os.environ.get("OMNI_PLATFORM")
    if named:
        if named not in PLATFORMS:
            raise ValueError(f"OMNI_PLATFORM: must be one of {', '.join(PLATFORMS)}, got {named!r}")
        return named
    for platform, tool, node in _SIGNS:
        if shutil.which(tool) or (node and Path(node).exists()):
            return platform
    return "cpu"
