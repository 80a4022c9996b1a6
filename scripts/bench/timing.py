"""Times of work on the CPU or on CUDA, where work is queued and its end must be waited for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from python_backends.engines_common.graphs import capture


def captured(act: Callable[[], object]) -> Callable[[], None]:
    """`act` captured as one CUDA graph; what is returned replays it, so that the host's work does not count."""
    graph, _ = capture(act)
    return graph.replay


@torch.inference_mode()
def times_ms(
    act: Callable[[], object], device: torch.device | str, repeats: int = 10, warm_up: int = 2, host: bool = False
) -> list[float]:
    """Milliseconds of each of `repeats` calls of `act`, after `warm_up` that do not count.

    On CUDA the time between two events on the current stream; with `host` wall time up to the end of the device's work,
    as on the CPU.
    """
    cuda = torch.device(device).type == "cuda"
    for _ in range(warm_up):
        act()
    if cuda:
        torch.cuda.synchronize()
    if cuda and not host:
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for begin, end in marks:
            begin.record()
            act()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in marks]
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        act()
        if cuda:
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - started))
    return found


def median_ms(act: Callable[[], object], device: torch.device | str, repeats: int = 10, host: bool = False) -> float:
    """Median of `times_ms`."""
    return statistics.median(times_ms(act, device, repeats, host=host))


def milliseconds(act: Callable[[], object], device: str | torch.device, repeats: int = 20) -> float:
    """Median time of `act` in milliseconds; on CUDA of replays of its graph, so that host work does not count."""
    with torch.inference_mode():
        cuda = torch.device(device).type == "cuda"
        return median_ms(captured(act) if cuda else act, device, repeats if cuda else min(repeats, 5))


def eager_milliseconds(act: Callable[[], object], device: str | torch.device, repeats: int = 5) -> float:
    """Median wall time of `act` in milliseconds with its host work, up to the end of its device work."""
    return median_ms(act, device, repeats, host=True)
