"""Programmatic dependent launch: a kernel starts while the one before it still runs.

Every kernel of the step lets its successor start, may touch constants (weights) at once, and waits for its predecessor
before it reads or writes anything else. As each one waits, all work before it has then ended too.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HOPPER = (9, 0)


@functools.cache
def launch_options() -> dict[str, bool]:
    """Arguments for every launch: overlapped from Hopper on, plain elsewhere."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= HOPPER:
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@triton.jit
def release_next(PDL: tl.constexpr):
    """Let the next kernel start."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def await_previous(PDL: tl.constexpr):
    """Wait until everything before this kernel has ended and can be read."""
    if PDL:
        gdc_wait()
