"""Triton kernels against their plain-torch twins. `test_triton_kernels` runs this file under Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from python_backends.config.sampling import TalkerSampling
from python_backends.engines_common.tensor_source import RandomSource
from python_backends.talker.kernels.interface import Rotary, Rows
from python_backends.talker.kernels.prefill_layout import PrefillLayout
from python_backends.talker.kernels.torch_kernels import TorchKernels
from python_backends.talker.kernels.triton_kernels import KernelChoices, TritonKernels
from python_backends.talker.kernels.triton_linear import Tile, VectorTile
from python_backends.talker.kernels.triton_moe import MoeTiles
from python_backends.talker.kernels.triton_moe_few import FewTiles
from python_backends.talker.kernels.triton_prefill import gather_sum_norm
from python_backends.talker.kernels.triton_routing import select
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.shapes import DecoderShape, TalkerShape, TokenIds
from python_backends.talker.model.slots import sampling_columns
from python_backends.talker.model.weights import TalkerWeights, load_weights
from python_backends.talker.step import rotary_of

EPS = 1e-6


def small_shape() -> TalkerShape:
    backbone = DecoderShape(
        layers=1,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=1120,
        intermediate=0,
        rope_theta=1e6,
        eps=EPS,
        experts=6,
        experts_per_row=2,
        expert_intermediate=16,
        shared_intermediate=24,
        normalise_routing=True,
        mrope_section=(4, 2, 2),
    )
    predictor = replace(backbone, experts=0, intermediate=48, vocab=80)
    ids = TokenIds(*range(1, 12), *range(40, 46))
    return TalkerShape(backbone, predictor, 4, 128, 32, 48, ids, {"ethan": 50}, 13, 2, 50, 65536)


@dataclass(frozen=True)
class Bench:
    shape: TalkerShape
    weights: TalkerWeights
    torch: TorchKernels
    triton: TritonKernels


@pytest.fixture(scope="module")
def bench() -> Bench:
    shape, device = small_shape(), torch.device("cpu")
    weights = load_weights(RandomSource(device, torch.float32), shape, device)
    return Bench(shape, weights, TorchKernels(weights, shape), TritonKernels(weights, shape, choices(4)))


def choices(few_rows: int, split: int = 2) -> KernelChoices:
    """Blocks that fit the small sizes; `few_rows` decides between vector and matrix kernels."""
    names = ("qkv", "out", "gate_up", "down", "router")
    return KernelChoices(
        tiles={name: Tile(16, 16, 16, split=split) for name in names},
        vectors={name: VectorTile(8, 1) for name in names},
        moe=MoeTiles(up_n=16, up_k=32, down_n=32, down_k=16, shared_m=16),
        few=FewTiles(up_n=8, down_n=16),
        splits=2,
        few_rows=few_rows,
    )


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rows", [3, 20])
def test_products(bench, rows):
    torch.manual_seed(rows)
    attention, x = bench.weights.backbone.layers[0].attention, Rows(torch.randn(rows, 64))
    close(bench.triton.norm(x, attention.norm, EPS), bench.torch.norm(x, attention.norm, EPS))
    close(bench.triton.linear(x.x, bench.weights.codec_head), bench.torch.linear(x.x, bench.weights.codec_head))
    ours = bench.triton.norm_linear(x, attention.norm, attention.qkv, EPS)
    close(ours, bench.torch.norm_linear(x, attention.norm, attention.qkv, EPS))


def close_blocks(kernels: TritonKernels, bench: Bench, ours: Rows, expected: Rows, following: torch.Tensor) -> None:
    close(ours.x, expected.x)
    close(kernels.norm(ours, following, EPS), bench.torch.norm(expected, following, EPS))


@pytest.mark.parametrize(("rows", "few_rows", "split"), [(3, 4, 1), (3, 0, 1), (19, 4, 4)])
def test_mlp_block(bench, rows, few_rows, split):
    torch.manual_seed(rows)
    kernels = TritonKernels(bench.weights, bench.shape, choices(few_rows, split))
    layer, following = bench.weights.predictor.layers[0], torch.rand(64)
    arguments = (Rows(torch.randn(rows, 64)), torch.randn(rows, 64), layer.attention.out, layer.mlp, following, EPS)
    close_blocks(kernels, bench, kernels.mlp_block(*arguments), bench.torch.mlp_block(*arguments), following)


@pytest.mark.parametrize(("rows", "few_rows", "normalise"), [(3, 4, True), (2, 0, False), (39, 4, True)])
def test_moe_block_twice(bench, rows, few_rows, normalise):
    """The second run shows that the first has left the counters at zero."""
    torch.manual_seed(rows)
    kernels = TritonKernels(bench.weights, bench.shape, choices(few_rows))
    layer, following = bench.weights.backbone.layers[0], torch.rand(64)
    moe = replace(layer.mlp, normalise=normalise)
    for _ in range(2):
        arguments = (Rows(torch.randn(rows, 64)), torch.randn(rows, 64), layer.attention.out, moe, following, EPS)
        close_blocks(kernels, bench, kernels.moe_block(*arguments), bench.torch.moe_block(*arguments), following)


@pytest.mark.parametrize("rows", [1, 40])
def test_experts_of_prompts_without_a_grouped_product_of_torch(bench, rows, monkeypatch):
    """float32: torch's grouped product asks the host for its groups, which no captured prefill can hold."""
    monkeypatch.setattr(torch, "_grouped_mm", None)
    torch.manual_seed(rows)
    layer, following = bench.weights.backbone.layers[0], torch.rand(64)
    for kernels in (bench.triton, TritonKernels(bench.weights, bench.shape)):
        for _ in range(2):
            arguments = (torch.randn(rows, 64), layer.mlp, following, EPS)
            ours, expected = kernels.prefill_moe(*arguments), bench.torch.prefill_moe(*arguments)
            close_blocks(kernels, bench, ours, expected, following)


def test_ties_between_experts_go_to_the_lower_id(bench):
    moe = bench.weights.backbone.layers[0].mlp
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0, -2.0, 1.0, 0.5], [0.0, -0.0, -1.0, 2.0, 0.0, 2.0, 0.5]])
    counts = torch.zeros(6, dtype=torch.int32)
    routing = select(logits[None], moe, counts)
    assert routing.ids[:, :2].tolist() == [[0, 1], [3, 5]]
    assert counts.tolist() == [1, 1, 0, 1, 0, 1]
    assert [routing.entries[expert, 0].item() for expert in (0, 1, 3, 5)] == [0, 1, 4, 5]


def test_embedding_with_absent_groups(bench):
    codes = torch.tensor([[5, 6, 7, 8], [45, -1, -1, -1], [1, 2, 3, 4]], dtype=torch.int32)
    text, slots = torch.tensor([3, 100]), torch.tensor([1, 0])
    close(bench.triton.embed(text, slots, codes), bench.torch.embed(text, slots, codes))


def test_decode_attention_and_cache(bench):
    torch.manual_seed(0)
    attention = bench.weights.backbone.layers[0].attention
    slots, rows = torch.tensor([2, 0, 1]), torch.tensor([150, 0, 63])
    rotary = rotary_of(rows.float() + 0.5, bench.weights.backbone.inv_freq)
    qkv = torch.randn(3, 128)
    caches = [torch.randn(4, 160, 2, 16) for _ in range(2)]
    results = []
    for kernels in (bench.triton, bench.torch):
        k_cache, v_cache = (cache.clone() for cache in caches)
        q = kernels.rotate_store(qkv, attention, rotary, slots, rows, k_cache, v_cache, EPS)
        mixed = kernels.decode_attention(q, k_cache, v_cache, slots, rows + 1, 160)
        results.append((q, k_cache, v_cache, mixed))
    for ours, expected in zip(*results, strict=True):
        close(ours, expected)


def test_prefill_attention_of_parts_of_prompts(bench):
    torch.manual_seed(1)
    slots, starts, counts = np.array([2, 0, 1]), np.array([0, 70, 3]), np.array([66, 5, 1])
    layout = PrefillLayout(slots, starts, counts, torch.device("cpu"))
    q, caches = torch.randn(72, 4, 16), [torch.randn(4, 160, 2, 16) for _ in range(2)]
    close(bench.triton.prefill_attention(q, *caches, layout), bench.torch.prefill_attention(q, *caches, layout))


def test_sum_over_gathered_entries(bench):
    torch.manual_seed(2)
    rows, choices = 5, 3
    entries, residual, weight = torch.randn(rows * choices, 64), torch.randn(rows, 64), torch.rand(64)
    places, share = torch.randperm(rows * choices), torch.rand(rows, choices)
    x, normed = gather_sum_norm(entries, places, share, residual, weight, EPS)
    expected = residual + (entries[places].view(rows, choices, 64) * share[:, :, None]).sum(1)
    close(x, expected)
    close(normed, bench.torch.norm(Rows(expected), weight, EPS))


@pytest.mark.parametrize(("first", "new"), [(0, 2), (2, 1), (3, 1)])
def test_predictor_attention(bench, first, new):
    torch.manual_seed(first)
    attention = bench.weights.predictor.layers[0].attention
    angles = rotary_of(torch.arange(5.0), bench.weights.predictor.inv_freq)
    qkv, buffers = torch.randn(3 * new, 128), torch.randn(2, 3, 5, 2, 16)
    results = []
    for kernels in (bench.triton, bench.torch):
        k_buffer, v_buffer = buffers.clone()
        mixed = kernels.predictor_attention(
            qkv, attention, Rotary(angles.cos, angles.sin), k_buffer, v_buffer, first, EPS
        )
        results.append((mixed, k_buffer, v_buffer))
    for ours, expected in zip(*results, strict=True):
        close(ours, expected)


SAMPLINGS = [
    TalkerSampling(temperature=0.0),
    TalkerSampling(top_k=5, top_p=0.7, predictor_top_k=3),
    TalkerSampling(top_k=0, top_p=0.9, temperature=2.0, predictor_top_p=0.5),
    TalkerSampling(top_k=1, ignore_eos=True),
    TalkerSampling(top_k=0, top_p=1.0, repetition_penalty=1.4, predictor_top_k=0, predictor_top_p=1.0),
    TalkerSampling(top_k=4000, predictor_top_k=4000, predictor_temperature=0.3),
]


def settings(frame: int) -> RowSettings:
    columns = [sampling_columns(s, (seed << 33) + seed + 1, 0.0) for seed, s in enumerate(SAMPLINGS)]
    floats = torch.tensor([floats for floats, _ in columns])
    ints = torch.tensor([ints for _, ints in columns])
    return RowSettings(floats, ints, torch.full((len(columns),), frame))


@pytest.mark.parametrize("frame", range(2))
def test_draws(bench, frame):
    torch.manual_seed(frame)
    rows = settings(frame)
    slots = torch.randperm(len(SAMPLINGS))
    first, later = 3 * torch.randn(len(SAMPLINGS), 1120), 3 * torch.randn(len(SAMPLINGS), 80)
    seen = torch.rand(len(SAMPLINGS), 1120) < 0.3
    results = []
    for kernels in (bench.triton, bench.torch):
        mine = seen.clone()
        results.append((*kernels.draw_first(first, rows, mine, slots), mine, *kernels.draw(later, rows, 2)))
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)
