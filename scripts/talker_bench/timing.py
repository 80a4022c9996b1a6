"""Timing on the CPU and of captured graphs on CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def milliseconds(act: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """Mean time of `act`; on CUDA captured as one graph and replayed, so that host work does not count."""
    with torch.inference_mode():
        if device.type != "cuda":
            act()
            started = time.perf_counter()
            for _ in range(3):
                act()
            return (time.perf_counter() - started) / 3 * 1e3
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            act()
            act()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            act()
        for _ in range(3):
            graph.replay()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / repeats


def eager_milliseconds(act: Callable[[], object], device: torch.device, repeats: int = 3) -> float:
    """Mean wall time of `act` with its host work, up to the end of its device work."""
    act()
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        act()
        if device.type == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats * 1e3
