"""Kernel choices against each other, compiled beforehand by several processes at once."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from python_backends.engines_common.tensor_source import RandomSource
from python_backends.talker.kernels.triton_linear import Tile, VectorTile
from python_backends.talker.kernels.triton_moe import MoeTiles
from python_backends.talker.kernels.triton_moe_few import FewTiles
from python_backends.talker.model.shapes import read_shape
from python_backends.talker.model.slots import allocate_slots
from python_backends.talker.model.weights import load_weights
from python_backends.talker.runner import TalkerRunner
from python_backends.talker.step import TalkerStep
from scripts.talker_bench.step_times import parts, start_all

WORKERS = 14
TILES = {
    "qkv": [Tile(0, 32, 64, 4, 6), Tile(0, 32, 256, 4, 3), Tile(0, 64, 128, 4, 4)],
    "gate_up": [Tile(0, 32, 64, 4, 4), Tile(0, 32, 128, 4, 3), Tile(0, 16, 128, 4, 4)],
    "out": [Tile(0, 32, 128, 4, 4, 2), Tile(0, 64, 128, 4, 3, 8), Tile(0, 64, 64, 4, 4, 4)],
    "down": [Tile(0, 32, 128, 4, 4, 8), Tile(0, 64, 128, 4, 3, 8), Tile(0, 64, 64, 4, 4, 4)],
}
TALL = {
    "qkv": [Tile(0, 32, 128, 8, 3), Tile(0, 64, 64, 8, 4), Tile(64, 32, 128, 4, 4)],
    "gate_up": [Tile(0, 32, 64, 8, 3), Tile(0, 32, 128, 8, 3), Tile(64, 32, 64, 4, 5)],
    "out": [Tile(0, 64, 64, 8, 4, 8), Tile(0, 64, 64, 8, 4, 4), Tile(64, 32, 128, 4, 4, 4)],
    "down": [Tile(0, 64, 64, 8, 4, 8), Tile(0, 64, 64, 8, 4, 4), Tile(64, 32, 128, 4, 4, 4)],
}
VECTORS = {
    "qkv": [VectorTile(8, 4), VectorTile(32, 8), VectorTile(32, 4)],
    "gate_up": [VectorTile(8, 4), VectorTile(16, 4), VectorTile(32, 8)],
    "out": [VectorTile(4, 4), VectorTile(8, 8)],
    "down": [VectorTile(4, 4), VectorTile(8, 4)],
}
MOES = [
    MoeTiles(shared_m=32),
    MoeTiles(32, 128, 4, 4, 64, 128, 4, 3),
    MoeTiles(64, 128, 8, 3, 128, 64, 4, 4),
    MoeTiles(128, 64, 8, 3, 128, 64, 8, 4),
    MoeTiles(64, 64, 4, 3, 64, 128, 4, 3),
]
FEWS = [FewTiles(16, 8, 8, 8), FewTiles(4, 4, 4, 4), FewTiles(8, 2, 16, 8)]
SPLITS = {1: (8, 32), 64: (2, 8), 128: (1, 2)}


@dataclass(frozen=True)
class Variant:
    """One change to the engine's kernel choices, and the part of the step and the batch that feel it."""

    name: str
    kind: str
    part: str
    batch: int
    change: dict


def variants(kinds: list[str], batches: list[int]) -> list[Variant]:
    """Every variant of the kinds asked for at the batches being timed; all kinds when none is named."""
    found = []
    predictor = "predictor_with_sampling"
    for batch, choices in ((64, TILES), (128, TALL)):
        for kind, tiles in choices.items():
            found += [Variant(f"{kind} {tile}", kind, predictor, batch, {"tiles": {kind: tile}}) for tile in tiles]
        found += [Variant(f"moe {tiles}", "moe", "backbone", batch, {"moe": tiles}) for tiles in MOES]
    for kind, tiles in VECTORS.items():
        found += [Variant(f"{kind} {tile}", "vectors", predictor, 1, {"vectors": {kind: tile}}) for tile in tiles]
    found += [Variant(f"few {tiles}", "few", "backbone", 1, {"few": tiles}) for tiles in FEWS]
    for batch, counts in SPLITS.items():
        found += [Variant(f"splits {count}", "splits", "backbone", batch, {"splits": count}) for count in counts]
    return [v for v in found if v.batch in batches and (not kinds or v.kind in kinds)]


def _kernels(runner_weights, shape, change: dict):
    from python_backends.talker.kernels.triton_kernels import KernelChoices, TritonKernels

    return TritonKernels(runner_weights, shape, KernelChoices(**change))


def compile_variant(config: Path, change: dict, batch: int) -> None:
    """Compile what a variant needs at one batch size: a step with one layer in each stack."""
    shape = read_shape(config)
    one = replace(
        shape,
        backbone=replace(shape.backbone, layers=1),
        predictor=replace(shape.predictor, layers=1),
        text_vocab=4096,
    )
    device = torch.device("cuda")
    with torch.inference_mode():
        weights = load_weights(RandomSource(device, torch.bfloat16), one, device)
        buffers = allocate_slots(one, batch, 256, device, torch.bfloat16)
        control = torch.zeros(4, batch, dtype=torch.int64, device=device)
        TalkerStep(one, weights, _kernels(weights, one, change), buffers)(control, 256)
    torch.cuda.synchronize()


def precompile(config: Path, batches: list[int], chosen: list[Variant]) -> int:
    """Fill Triton's cache from several processes: the engine's own choices at all `batches`, then the variants.

    Gives the number of step builds.
    """
    own = [(config, {}, batch) for batch in batches]
    others = [(config, variant.change, variant.batch) for variant in chosen]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        for future in [pool.submit(compile_variant, *job) for job in own + others]:
            try:
                future.result()
            except Exception as error:
                print(f"a variant does not build: {error!r}", flush=True)
    return len(own) + len(others)


def run(runner: TalkerRunner, context: int, chosen: list[Variant]) -> dict:
    """Milliseconds of the part that each variant changes, by batch and part; the engine's own choice first."""
    if runner.device.type != "cuda":
        return {"note": "the sweep compares CUDA kernels"}
    start_all(runner)
    table: dict[str, dict[str, float | str]] = {}
    for variant in chosen:
        row = table.setdefault(f"{variant.part} at {variant.batch}", {})
        for name, change in (("default", {}), (variant.name, variant.change)):
            if name in row:
                continue
            try:
                kernels = _kernels(runner.weights, runner.shape, change)
                step = TalkerStep(runner.shape, runner.weights, kernels, runner.buffers)
                row[name] = round(parts(step, runner, variant.batch, context, variant.part)[variant.part], 3)
            except Exception as error:
                row[name] = f"{type(error).__name__}: {error}"[:200]
    for where, row in table.items():
        for name, value in row.items():
            print(f"{where}: {value} {name}", flush=True)
    return table
