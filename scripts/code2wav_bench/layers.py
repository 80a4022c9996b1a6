"""Every layer shape of the decoder with every kernel variant, to choose the kernel plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from python_backends.code2wav import plan as plan_module
from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.ops import Batch, Ops
from python_backends.code2wav.parameters import Code2WavParameters, DecoderBlock, TapConv
from python_backends.code2wav.plan import GemmTile, KernelPlan, UnitTile
from python_backends.code2wav.triton_ops import TritonOps
from scripts.code2wav_bench.timing import median_ms

WIDE = [GemmTile(128, 256, 64, 8, 3, cache=".ca"), GemmTile(128, 256, 64, 8, 4, tma=True)]
MIDDLE = [
    GemmTile(128, 128, 64, 8, 3, cache=".ca"),
    GemmTile(128, 128, 64, 4, 3, cache=".ca"),
    GemmTile(256, 128, 64, 8, 3, cache=".ca"),
    GemmTile(128, 128, 64, 8, 4, tma=True),
    GemmTile(256, 128, 64, 8, 3, tma=True),
]
HEAVY = [
    GemmTile(128, 128, 64, 8, 3),
    GemmTile(128, 128, 64, 4, 3),
    GemmTile(128, 128, 64, 8, 4, tma=True),
    GemmTile(128, 64, 64, 4, 4),
]
NARROW = [GemmTile(128, 32, 64, 4, 4, cache=".ca"), GemmTile(128, 64, 64, 4, 4, cache=".ca")]
UNITS = {
    192: [
        UnitTile(128, 64, 8, 3, ".ca"),
        UnitTile(128, 64, 8, 3),
        UnitTile(128, 32, 8, 4, ".ca"),
        UnitTile(64, 64, 4, 3, ".ca"),
        UnitTile(64, 32, 4, 4, ".ca"),
    ],
}


@dataclass(frozen=True)
class Case:
    """One layer shape. `run(ops, source, residual)` runs it; `floating_point`: operations of one step; `rows`: how many
    rows of the result are surely written."""

    name: str
    key: tuple[int, int]
    source: tuple[int, int, int]
    residual: tuple[int, int, int] | None
    rows: int
    floating_point: float
    run: Callable[[Ops, torch.Tensor, torch.Tensor | None], object]
    plans: list[tuple[str, KernelPlan]]


@dataclass(frozen=True)
class Result:
    """A timed variant. `error`: relative to PyTorch's operations."""

    layer: str
    variant: str
    ms: float
    tflop_s: float
    error: float
    plan: KernelPlan


def cases(config: Code2WavConfig, parameters: Code2WavParameters, streams: int, frames: int) -> Iterator[Case]:
    """The decoder's layer shapes for one step, in order; of the three dilations the middle one stands for all."""
    device = parameters.norm.device
    batch = Batch(torch.arange(streams, device=device), torch.zeros(streams, dtype=torch.int64, device=device))
    rows = frames
    for ratio in config.upsampling_ratios:
        rows *= ratio
    entry = parameters.entry
    yield _conv_case("entry", entry, streams, rows, WIDE + MIDDLE, after=parameters.entry_after, context=1)
    for index, block in enumerate(parameters.blocks):
        options = {"startup_rows": block.startup_rows, "batch": batch, "keep": True, "channels": block.channels}
        up_tiles = HEAVY + (NARROW if block.channels < 128 else [])
        yield _conv_case(f"up{index}", block.up, streams, rows, up_tiles, after=block.after, context=18, **options)
        rows *= block.rate
        unit = block.units[1]
        tiles = (WIDE if block.channels % 256 == 0 else []) + MIDDLE + (NARROW if block.channels < 256 else [])
        yield _conv_case(f"conv{index}", unit.conv1, streams, rows, tiles, after=unit.middle)
        tiles = HEAVY + (NARROW if block.channels < 256 else [])
        yield _conv_case(
            f"point{index}", unit.conv2, streams, rows, tiles, after=unit.after, context=54, residual=True, **options
        )
        if block.channels in UNITS:
            yield _unit_case(f"unit{index}", block, streams, rows, batch)


def _conv_case(
    name: str, conv: TapConv, streams: int, rows: int, tiles: list[GemmTile], residual: bool = False, **arguments
) -> Case:
    taps, inner, outer = conv.weight.shape

    def run(ops: Ops, source: torch.Tensor, added: torch.Tensor | None):
        return ops.tap_conv(source, conv, residual=added, **arguments)

    plans = [(_tile_name(tile), KernelPlan(gemm={(taps, inner): tile})) for tile in tiles]
    plans.append(("library", KernelPlan(library=frozenset({(taps, inner)}))))
    return Case(
        name,
        (taps, inner),
        (streams, rows + conv.context, inner),
        (streams, rows, outer) if residual else None,
        rows,
        2.0 * streams * rows * taps * inner * outer,
        run,
        plans,
    )


def _unit_case(name: str, block: DecoderBlock, streams: int, rows: int, batch: Batch) -> Case:
    unit, channels = block.units[1], block.channels

    def run(ops: Ops, source: torch.Tensor, added: torch.Tensor | None):
        return ops.residual_unit(
            source, added, unit, context=54, startup_rows=block.startup_rows, batch=batch, keep=True
        )

    return Case(
        name,
        (7, channels),
        (streams, rows + unit.conv1.context, channels),
        (streams, rows, channels),
        rows,
        2.0 * streams * rows * 8 * channels * channels,
        run,
        [(_tile_name(tile), KernelPlan(units={channels: tile})) for tile in UNITS[channels]],
    )


def _tile_name(tile: GemmTile | UnitTile) -> str:
    sizes = "x".join(str(getattr(tile, name)) for name in ("block_m", "block_n", "block_k") if hasattr(tile, name))
    tma = " tma" if getattr(tile, "tma", False) else ""
    return f"{sizes} w{tile.warps} s{tile.stages}{tma}{' L1' if tile.cache else ''}"


def time_case(case: Case, dtype: torch.dtype, device: str) -> Iterator[Result]:
    """Time every variant; a variant that fails to run yields an infinite time and its message."""
    source = torch.randn(case.source, device=device, dtype=dtype)
    residual = torch.randn(case.residual, device=device, dtype=dtype) if case.residual else None
    expected = case.run(Ops(), source[:1], None if residual is None else residual[:1])[1].float()[:, -case.rows :]
    for variant, plan in case.plans:
        ops = TritonOps(plan)
        try:
            actual = case.run(ops, source, residual)[1][:1].float()[:, -case.rows :]
            error = ((actual - expected).norm() / expected.norm()).item()
            ms = median_ms(lambda ops=ops: case.run(ops, source, residual), device, repeats=7)
        except Exception as problem:
            yield Result(case.name, f"{variant}: {str(problem)[:120]!r}", float("inf"), 0.0, float("nan"), plan)
            continue
        yield Result(case.name, variant, ms, case.floating_point / ms / 1e9, error, plan)


def compile_share(config: Code2WavConfig, parameters: Code2WavParameters, share: int, shares: int) -> None:
    """Run every `shares`-th variant once on a small step, so that its kernels are in Triton's cache on disk."""
    # Small steps take the tile that is asked for, too.
    plan_module.MULTIPROCESSORS = 0
    variants = {}
    for case in cases(config, parameters, 8, 25):
        for tile, plan in case.plans:
            if not plan.library:
                # Layers of one kind share their kernels, whatever their width.
                kind = case.name.rstrip("0123456789"), case.key[0], case.key[1] % 64, tuple(plan.units)
                variants.setdefault((kind, tile), (case, plan))
    for case, plan in list(variants.values())[share::shares]:
        source = torch.zeros(case.source, device="cuda", dtype=torch.bfloat16)
        residual = torch.zeros(case.residual, device="cuda", dtype=torch.bfloat16) if case.residual else None
        case.run(TritonOps(plan), source, residual)
    torch.cuda.synchronize()


def best_plan(results: list[Result], tolerance: float = 0.02) -> KernelPlan:
    """The fastest right variant of each layer; fused units where they beat the two products they replace."""
    plan, fastest = KernelPlan(), {}
    for result in results:
        right = result.error < tolerance
        if right and (result.layer not in fastest or result.ms < fastest[result.layer].ms):
            fastest[result.layer] = result
    for layer, result in fastest.items():
        if layer.startswith("unit"):
            index = layer.removeprefix("unit")
            parts = [fastest.get(part + index) for part in ("conv", "point")]
            if all(parts) and result.ms > sum(part.ms for part in parts):
                continue
        plan = replace(
            plan,
            library=plan.library | result.plan.library,
            gemm={**plan.gemm, **result.plan.gemm},
            units={**plan.units, **result.plan.units},
        )
    return plan
