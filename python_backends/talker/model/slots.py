"""Device state of the streams that decode: caches, codes, penalties and sampling settings, one row a slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from python_backends.config.sampling import TalkerSampling
from python_backends.talker.model.shapes import TalkerShape

FLOATS = ("temperature", "top_p", "penalty", "predictor_temperature", "predictor_top_p", "position_delta")
INTS = ("top_k", "predictor_top_k", "seed_low", "seed_high", "ignore_eos")


@dataclass(frozen=True)
class SlotBuffers:
    """Static buffers for `count` slots and one scratch slot, the last, that padding rows use.

    `k_cache`, `v_cache` [layers, count + 1, context, kv_heads, head_dim]. `codes` int32 [count + 1, groups]: the last
    frame, -1 for a group that adds nothing. `seen` bool [count + 1, vocab]. `floats` float32 and `ints` int64 hold one
    column for each name in FLOATS and INTS.
    """

    count: int
    context: int
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    codes: torch.Tensor
    seen: torch.Tensor
    floats: torch.Tensor
    ints: torch.Tensor


LOWEST_TEMPERATURE = 1e-5


def allocate_slots(
    shape: TalkerShape, count: int, context: int, device: torch.device, dtype: torch.dtype
) -> SlotBuffers:
    """Allocate zeroed buffers; the caches take 2 * layers * (count + 1) * context * kv_heads * head_dim values."""
    backbone = shape.backbone
    cache = (backbone.layers, count + 1, context, backbone.kv_heads, backbone.head_dim)
    floats = torch.zeros(count + 1, len(FLOATS), device=device)
    floats[:, FLOATS.index("penalty")] = 1.0
    return SlotBuffers(
        count=count,
        context=context,
        k_cache=torch.zeros(cache, device=device, dtype=dtype),
        v_cache=torch.zeros(cache, device=device, dtype=dtype),
        codes=torch.full((count + 1, shape.groups), -1, device=device, dtype=torch.int32),
        seen=torch.zeros(count + 1, backbone.vocab, device=device, dtype=torch.bool),
        floats=floats,
        ints=torch.zeros(count + 1, len(INTS), device=device, dtype=torch.int64),
    )


def sampling_columns(sampling: TalkerSampling, seed: int, position_delta: float) -> tuple[list[float], list[int]]:
    """Values for one slot in the order of FLOATS and INTS. Temperature 0, or one so small that it would overflow the
    logits, makes the code predictor greedy too."""
    temperature = sampling.temperature if sampling.temperature >= LOWEST_TEMPERATURE else 0.0
    predictor_temperature = sampling.predictor_temperature if temperature > 0 else 0.0
    floats = [
        float(temperature),
        float(sampling.top_p),
        float(sampling.repetition_penalty),
        float(predictor_temperature),
        float(sampling.predictor_top_p),
        position_delta,
    ]
    ints = [
        sampling.top_k,
        sampling.predictor_top_k,
        seed & 0xFFFFFFFF,
        seed >> 32,
        int(sampling.ignore_eos),
    ]
    return floats, ints
