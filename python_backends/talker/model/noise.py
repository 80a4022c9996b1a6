"""Counter-based sampling noise: a hash of (seed, frame, code group, token) in 32-bit integer arithmetic."""

from __future__ import annotations

import torch

MASK = 0xFFFFFFFF
GROUPS_PER_FRAME = 64
SEED_SALT = 0x9E3779B9
COUNTER_STEP = 0x85EBCA6B
TOKEN_STEP = 0xC2B2AE35


def mix(bits: torch.Tensor) -> torch.Tensor:
    """Bijective 32-bit finaliser with low bias (the "lowbias32" constants) on int64 values below 2**32."""
    bits = bits ^ (bits >> 16)
    bits = (bits * 0x7FEB352D) & MASK
    bits = bits ^ (bits >> 15)
    bits = (bits * 0x846CA68B) & MASK
    return bits ^ (bits >> 16)


def stream_key(seed_low: torch.Tensor, seed_high: torch.Tensor) -> torch.Tensor:
    """Key int64 [rows] of a whole stream. The halves of the seed are int64 below 2**32."""
    return mix(mix(seed_low ^ SEED_SALT) ^ seed_high)


def draw_key(stream: torch.Tensor, frame: torch.Tensor, group: int) -> torch.Tensor:
    """Key int64 [rows] of one draw of streams with keys `stream`; `frame` int64 [rows] counts from 0."""
    counter = frame * GROUPS_PER_FRAME + group
    return mix(stream ^ ((counter * COUNTER_STEP) & MASK))


def uniform(key: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Float32 [rows, n] in (0, 1) for token ids int64 [rows, n] or [1, n]: (23 hash bits + 0.5) / 2**23, exact in
    float32."""
    bits = mix(key[:, None] ^ ((tokens * TOKEN_STEP) & MASK))
    return ((bits >> 9).to(torch.float32) + 0.5) * (2.0**-23)


def gumbel(key: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise float32 [rows, n]; argmax(logits + gumbel) draws from softmax(logits)."""
    return -torch.log(-torch.log(uniform(key, tokens)))
