"""Clocks and tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch


def median_ms(function: Callable[[], object], device: str, repeats: int = 10, warm_up: int = 2) -> float:
    """Median time of `function` in milliseconds, by device events on CUDA."""
    for _ in range(warm_up):
        function()
    if not device.startswith("cuda"):
        return statistics.median(_host_ms(function) for _ in range(repeats))
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    torch.cuda.synchronize()
    for begin, end in marks:
        begin.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


def _host_ms(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - begin)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with three significant figures."""

    def cell(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    lines = [f"## {title}", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows), ""])


def ceilings() -> dict[str, float]:
    """What the device reaches: copy bandwidth in TB/s (bytes read and written), bf16 product in TFLOP/s."""
    size = 8192
    source = torch.randn(16 * size, size, device="cuda")
    target = torch.empty_like(source)
    copy = median_ms(lambda: target.copy_(source), "cuda")
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = median_ms(lambda: left @ right, "cuda")
    return {"copy_tb_s": 2 * 4 * source.numel() / copy / 1e9, "bf16_tflop_s": 2 * size**3 / product / 1e9}
