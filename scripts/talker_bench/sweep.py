"""Kernel choices against each other, compiled beforehand by several processes at once."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from python_backends.talker.kernels.triton_linear import Tile
from python_backends.talker.kernels.triton_moe import MoeTiles
from python_backends.talker.runner import TalkerRunner
from python_backends.talker.shapes import read_shape
from python_backends.talker.slots import allocate_slots
from python_backends.talker.step import TalkerStep
from python_backends.talker.tensor_source import RandomSource
from python_backends.talker.weights import load_weights
from scripts.talker_bench.step_times import parts, start_all

WORKERS = 12
SWEEP_BATCHES = (1, 64)
TILES = {
    "qkv": [Tile(0, 16, 128), Tile(0, 16, 256), Tile(0, 32, 64, 4, 5), Tile(0, 32, 256, 4, 3), Tile(0, 64, 128, 4, 3)],
    "gate_up": [Tile(0, 16, 128), Tile(0, 16, 256, 4, 3), Tile(0, 32, 64, 4, 5), Tile(0, 64, 64, 4, 4)],
    "out": [
        Tile(0, 16, 256),
        Tile(0, 16, 128, 2, 5),
        Tile(0, 16, 128, 4, 4, 2),
        Tile(0, 32, 128, 4, 4, 4),
        Tile(0, 64, 128, 4, 3, 8),
    ],
    "down": [
        Tile(0, 16, 256),
        Tile(0, 16, 128, 2, 5),
        Tile(0, 16, 128, 4, 4, 2),
        Tile(0, 32, 128, 4, 4, 4),
        Tile(0, 64, 128, 4, 3, 8),
    ],
    "head": [Tile(0, 16, 128)],
}
MOES = [
    MoeTiles(False, 32, 128, 4, 4, 64, 128, 4, 3),
    MoeTiles(False, 64, 64, 4, 4, 64, 64, 4, 4),
    MoeTiles(False, 64, 128, 8, 3, 128, 128, 8, 3),
    MoeTiles(False, 128, 64, 8, 3, 128, 128, 4, 3),
    MoeTiles(True, 32, 128, 4, 4, 32, 128, 4, 3),
    MoeTiles(True, 16, 256, 4, 3, 16, 128, 4, 3),
]
SPLITS = [2, 4, 8, 16, 32]
ALL = "all library products"


@dataclass(frozen=True)
class Variant:
    """One change to the engine's kernel choices, and the part of the step that feels it."""

    name: str
    kind: str
    part: str
    change: dict


def variants(kinds: list[str]) -> list[Variant]:
    """Every variant of the kinds asked for; all kinds when none is named."""
    found = [
        Variant("default", "default", "step", {}),
        Variant("default predictor", "default", "predictor_with_sampling", {}),
        Variant("default backbone", "default", "backbone", {}),
    ]
    for kind, tiles in TILES.items():
        for tile in tiles:
            name = f"{kind} n{tile.n} k{tile.k} w{tile.warps} s{tile.stages} split{tile.split}"
            found.append(Variant(name, kind, "predictor_with_sampling", {"tiles": {kind: tile}}))
    for tiles in MOES:
        up = f"up n{tiles.up_n} k{tiles.up_k} w{tiles.up_warps} s{tiles.up_stages}"
        down = f"down n{tiles.down_n} k{tiles.down_k} w{tiles.down_warps}"
        found.append(Variant(f"moe entry={tiles.per_entry} {up} {down}", "moe", "backbone", {"moe": tiles}))
    found += [Variant(f"attention splits {count}", "splits", "backbone", {"splits": count}) for count in SPLITS]
    found.append(Variant(ALL, "library", "predictor_with_sampling", {"library_linear": True}))
    return [variant for variant in found if not kinds or variant.kind in (*kinds, "default")]


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
        groups=3,
    )
    device = torch.device("cuda")
    with torch.inference_mode():
        weights = load_weights(RandomSource(device, torch.bfloat16), one, device)
        buffers = allocate_slots(one, batch, 256, device, torch.bfloat16)
        control = torch.zeros(4, batch, dtype=torch.int64, device=device)
        TalkerStep(one, weights, _kernels(weights, one, change), buffers)(control, 256)
    torch.cuda.synchronize()


def precompile(config: Path, batches: list[int], kinds: list[str] | None) -> int:
    """Fill Triton's cache from several processes; give the number of step builds.

    The engine's own choices are built for all `batches`, the variants of `kinds` for SWEEP_BATCHES; none when None.
    """
    jobs = [(config, {}, batch) for batch in batches]
    if kinds is not None:
        changes = [variant.change for variant in variants(kinds) if variant.change]
        jobs += [(config, change, batch) for change in changes for batch in SWEEP_BATCHES]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(WORKERS, len(jobs)), mp_context=context) as pool:
        for future in [pool.submit(compile_variant, *job) for job in jobs]:
            try:
                future.result()
            except Exception as error:
                print(f"a variant does not build: {error!r}", flush=True)
    return len(jobs)


def run(runner: TalkerRunner, batches: list[int], context: int, kinds: list[str]) -> dict:
    """Milliseconds of the part that each variant changes, by batch, best first."""
    if runner.device.type != "cuda":
        return {"note": "the sweep compares CUDA kernels"}
    start_all(runner)
    table: dict[str, dict[str, float]] = {}
    for variant in variants(kinds):
        for batch in batches:
            try:
                kernels = _kernels(runner.weights, runner.shape, variant.change)
                step = TalkerStep(runner.shape, runner.weights, kernels, runner.buffers)
                times = parts(step, runner, batch, context, only=variant.part)
                table.setdefault(variant.name, {})[str(batch)] = round(times[variant.part], 3)
            except Exception as error:
                table.setdefault(variant.name, {})[str(batch)] = f"{type(error).__name__}"
                print(f"variant {variant.name} at {batch}: {error!r}"[:300], flush=True)
        print(f"variant {variant.name}: {table[variant.name]}", flush=True)
    return table
