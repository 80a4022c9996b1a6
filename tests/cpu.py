"""What this machine's CPU promises."""

from __future__ import annotations

from pathlib import Path

import torch


def products_round_alike() -> bool:
    """Whether MKL rounds a row of a small product the same way among any number of rows above one.

    Seen on Intel CPUs with AVX-512. On others, AMD's with AVX-512 too, MKL takes other routines for other shapes.
    """
    cpuinfo = Path("/proc/cpuinfo")
    intel = cpuinfo.exists() and "GenuineIntel" in cpuinfo.read_text()
    return intel and torch.backends.cpu.get_cpu_capability() == "AVX512"
