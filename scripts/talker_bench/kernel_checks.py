"""Each kernel against its plain-torch twin at the sizes being timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from python_backends.talker.kernels.interface import Rows
from python_backends.talker.kernels.prefill_layout import PrefillLayout
from python_backends.talker.kernels.torch_kernels import TorchKernels, rms_norm
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.weights import AttentionWeights, MoeWeights
from python_backends.talker.runner import TalkerRunner
from python_backends.talker.step import rotary_of
from scripts.talker_bench.step_times import start_all

ROWS = (1, 3, 16, 64, 128)
POOL = 16


def difference(ours: object, expected: object) -> float:
    """Largest difference over the largest value; for integers the share of unequal entries."""
    if isinstance(ours, Rows):
        return difference(ours.x, expected.x)
    if isinstance(ours, tuple):
        return max(difference(a, b) for a, b in zip(ours, expected, strict=True))
    if not ours.is_floating_point():
        return float((ours != expected).float().mean())
    scale = expected.float().abs().max().clamp(min=1e-6)
    return float((ours.float() - expected.float()).abs().max() / scale)


def run(runner: TalkerRunner) -> dict:
    """Difference by kernel and number of rows: bf16 rounding is about 0.01, draws should agree fully."""
    start_all(runner)
    twin = TorchKernels(runner.weights, runner.shape)
    table: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for rows in [rows for rows in ROWS if rows <= runner.buffers.count]:
            for name, act in _cases(runner, rows).items():
                value = difference(act(runner.kernels), act(twin))
                table.setdefault(name, {})[str(rows)] = round(value, 5)
    for name, values in table.items():
        print(f"check {name}: {values}", flush=True)
    return table


def clear_routing(
    x: torch.Tensor, mixed: torch.Tensor | None, attention: AttentionWeights, moe: MoeWeights, eps: float, rows: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The `rows` inputs, of a block or of experts alone, whose last chosen expert is the furthest ahead of the next.

    Near a tie rounding alone decides which expert a row visits, and a comparison would then measure the experts'
    difference instead of the kernels'.
    """
    y = (x if mixed is None else x + mixed @ attention.out.t()).float()
    logits = rms_norm(y, moe.norm.float(), eps) @ moe.router.float().t()
    ranked = logits.topk(moe.top_k + 1, dim=-1).values
    best = (ranked[:, -2] - ranked[:, -1]).topk(rows).indices
    return x[best].contiguous(), None if mixed is None else mixed[best].contiguous()


def _cases(runner: TalkerRunner, rows: int) -> dict[str, Callable]:
    shape, weights, device, eps = runner.shape, runner.weights, runner.device, runner.shape.backbone.eps
    generator = torch.Generator(device).manual_seed(rows)
    dtype = weights.codec_head.dtype

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, device=device, generator=generator).to(dtype)

    layer, predictor = weights.backbone.layers[0], weights.predictor.layers[0]
    attention, wide = layer.attention, shape.backbone.heads * shape.backbone.head_dim
    x, qkv = normal(rows, shape.backbone.hidden), normal(rows, shape.backbone.qkv)
    clear = clear_routing(normal(POOL * rows, x.shape[1]), normal(POOL * rows, wide), attention, layer.mlp, eps, rows)
    prompt_rows = clear_routing(normal(POOL * rows, x.shape[1]), None, attention, layer.mlp, eps, rows)[0]
    following, predictor_mixed = weights.backbone.norm, normal(rows, predictor.attention.out.shape[1])
    slots = torch.randperm(runner.buffers.count, device=device, generator=generator)[:rows]
    at = torch.randint(0, 1500, (rows,), device=device, generator=generator)
    rotary = rotary_of(at.float(), weights.backbone.inv_freq)
    angles = rotary_of(torch.arange(shape.groups + 1.0, device=device), weights.predictor.inv_freq)
    caches = [normal(*runner.buffers.k_cache.shape[1:]) for _ in range(2)]
    small = normal(2, rows, shape.groups + 1, shape.predictor.kv_heads, shape.predictor.head_dim)
    qkv_new, qkv_two = normal(rows, shape.predictor.qkv), normal(2 * rows, shape.predictor.qkv)
    first_logits, logits = 3 * normal(rows, shape.backbone.vocab), 3 * normal(rows, shape.predictor.vocab)
    frame = torch.arange(rows, device=device)
    settings = RowSettings(runner.buffers.floats[slots], runner.buffers.ints[slots], frame)
    seen = torch.rand(runner.buffers.seen.shape, device=device, generator=generator) < 0.1

    def attend(kernels):
        k_cache, v_cache = (cache.clone() for cache in caches)
        q = kernels.rotate_store(qkv, attention, rotary, slots, at, k_cache, v_cache, eps)
        return (
            q,
            k_cache[slots, at],
            v_cache[slots, at],
            kernels.decode_attention(q, k_cache, v_cache, slots, at + 1, runner.buffers.context),
        )

    def attend_prompts(kernels):
        counts = np.array([rows - rows // 3, rows // 3]) if rows > 2 else np.array([rows])
        layout = PrefillLayout(slots[: len(counts)].cpu().numpy(), np.array([0, 40])[: len(counts)], counts, device)
        q = qkv.view(rows, -1, shape.backbone.head_dim)[:, : shape.backbone.heads].contiguous()
        return kernels.prefill_attention(q, *caches, layout)

    def predict(kernels, rows_in: torch.Tensor, first: int):
        k_buffer, v_buffer = small.clone()
        out = kernels.predictor_attention(rows_in, predictor.attention, angles, k_buffer, v_buffer, first, eps)
        return out, k_buffer, v_buffer

    return {
        "embed": lambda k: k.embed(at, slots, runner.buffers.codes),
        "norm": lambda k: k.norm(Rows(x), attention.norm, eps),
        "linear": lambda k: k.linear(x, weights.codec_head),
        "norm_linear": lambda k: k.norm_linear(Rows(x), attention.norm, attention.qkv, eps),
        "mlp_block": lambda k: k.mlp_block(
            Rows(x), predictor_mixed, predictor.attention.out, predictor.mlp, following, eps
        ),
        "moe_block": lambda k: k.moe_block(Rows(clear[0]), clear[1], attention.out, layer.mlp, following, eps),
        "prefill_moe": lambda k: k.prefill_moe(prompt_rows, layer.mlp, following, eps),
        "attention": attend,
        "prefill_attention": attend_prompts,
        "predictor_two": lambda k: predict(k, qkv_two, 0),
        "predictor_one": lambda k: predict(k, qkv_new, 9),
        "draw_first": lambda k: k.draw_first(first_logits, settings, seen.clone(), slots)[0],
        "draw": lambda k: k.draw(logits, settings, 5)[0],
    }
