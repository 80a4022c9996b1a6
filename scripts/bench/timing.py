"""One timer: replays of a captured graph on CUDA, calls on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from python_backends.engines_common.graphs import capture


def milliseconds(act: Callable[[], object], device: str | torch.device, repeats: int = 20) -> float:
    """Median time of `act` in milliseconds; on CUDA of replays of its graph, so that host work does not count."""
    with torch.inference_mode():
        if torch.device(device).type != "cuda":
            return eager_milliseconds(act, device, min(repeats, 5))
        graph, _ = capture(act)
        return _by_events(graph.replay, repeats)


def eager_milliseconds(act: Callable[[], object], device: str | torch.device, repeats: int = 5) -> float:
    """Median wall time of `act` in milliseconds with its host work, up to the end of its device work."""
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    act()
    wait()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        act()
        wait()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def _by_events(act: Callable[[], object], repeats: int) -> float:
    for _ in range(3):
        act()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    torch.cuda.synchronize()
    for begin, end in marks:
        begin.record()
        act()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)
