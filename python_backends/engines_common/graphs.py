"""CUDA graphs of work whose inputs and results lie in static buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
GraphPool = Any  # what torch.cuda.graph_pool_handle gives


@functools.cache
def _warm_up_stream(device: int) -> torch.cuda.Stream:
    """One a device: torch keeps freed memory for the stream that used it, and many streams would hoard it."""
    return torch.cuda.Stream(device)


def capture(run: Callable[[], Result], pool: GraphPool | None = None) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Capture what `run` launches on the current device; give the graph and what `run` returned.

    `run` is called twice: the first call compiles kernels and sets libraries up, which no graph can hold. The result's
    tensors are static buffers, which every replay of this or of another graph of `pool` overwrites. Capture the largest
    work first: the others then fit into its memory.
    """
    side = _warm_up_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = run()
    return graph, result
