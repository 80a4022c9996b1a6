"""Mixture of experts for the smallest batches: each entry streams its expert's weights through vector products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from python_backends.talker.kernels.overlap import await_previous, launch_options, release_next
from python_backends.talker.kernels.triton_routing import Routing
from python_backends.talker.model.weights import MoeWeights


@dataclass(frozen=True)
class FewTiles:
    """Columns and warps of one program of the gate-up and down products."""

    up_n: int = 8
    up_warps: int = 4
    down_n: int = 8
    down_warps: int = 4


@triton.jit
def _up_few_kernel(
    x_ptr,
    norm_ptr,
    gate_up_ptr,
    id_ptr,
    middle_ptr,
    eps,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    entry = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, K_PAD)
    inside = inner < K
    scale = tl.load(norm_ptr + inner, mask=inside, other=0.0).to(tl.float32)
    await_previous(PDL)
    expert = tl.load(id_ptr + entry).to(tl.int64)
    at = gate_up_ptr + expert * 2 * WIDTH * K + (column % WIDTH)[:, None] * K + inner[None, :]
    gate_w = tl.load(at, mask=inside[None, :], other=0.0)
    up_w = tl.load(at + WIDTH * K, mask=inside[None, :], other=0.0)
    x = tl.load(x_ptr + entry // CHOICES * K + inner, mask=inside, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, axis=0) / K + eps) * scale
    x = x.to(gate_w.dtype).to(tl.float32)
    gate = tl.sum(gate_w.to(tl.float32) * x[None, :], axis=1)
    up = tl.sum(up_w.to(tl.float32) * x[None, :], axis=1)
    middle = gate * tl.sigmoid(gate) * up
    tl.store(middle_ptr + entry * WIDTH + column, middle.to(middle_ptr.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def _down_few_kernel(
    x_ptr,
    middle_ptr,
    down_ptr,
    id_ptr,
    share_ptr,
    y_ptr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    HIDDEN: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_ok = column < HIDDEN
    inner = tl.arange(0, K_PAD)
    inside = inner < K
    await_previous(PDL)
    total = tl.zeros([BLOCK_N, K_PAD], dtype=tl.float32)
    for choice in tl.static_range(CHOICES):
        entry = row * CHOICES + choice
        expert = tl.load(id_ptr + entry).to(tl.int64)
        at = down_ptr + expert * HIDDEN * K + (column % HIDDEN)[:, None] * K + inner[None, :]
        w = tl.load(at, mask=inside[None, :], other=0.0).to(tl.float32)
        middle = tl.load(middle_ptr + entry * K + inner, mask=inside, other=0.0).to(tl.float32)
        total += w * (middle * tl.load(share_ptr + entry))[None, :]
    y = tl.sum(total, axis=1) + tl.load(x_ptr + row * HIDDEN + column, mask=column_ok, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * HIDDEN + column, y.to(y_ptr.dtype.element_ty), mask=column_ok)


def moe_few(x: torch.Tensor, weights: MoeWeights, routing: Routing, eps: float, tiles: FewTiles) -> torch.Tensor:
    """x + routed experts + gated shared expert of norm(x): [rows, hidden]."""
    rows, hidden = x.shape
    width, choices = weights.gate_up.shape[1] // 2, weights.top_k + weights.shared
    middle = x.new_empty(rows * choices, width)
    y = torch.empty_like(x)
    _up_few_kernel[(rows * choices, triton.cdiv(width, tiles.up_n))](
        x,
        weights.norm,
        weights.gate_up,
        routing.ids,
        middle,
        eps,
        K=hidden,
        K_PAD=triton.next_power_of_2(hidden),
        WIDTH=width,
        CHOICES=choices,
        BLOCK_N=tiles.up_n,
        num_warps=tiles.up_warps,
        **launch_options(),
    )
    _down_few_kernel[(rows, triton.cdiv(hidden, tiles.down_n))](
        x,
        middle,
        weights.down,
        routing.ids,
        routing.share,
        y,
        K=width,
        K_PAD=triton.next_power_of_2(width),
        HIDDEN=hidden,
        CHOICES=choices,
        BLOCK_N=tiles.down_n,
        num_warps=tiles.down_warps,
        **launch_options(),
    )
    return y
