"""Mixture of experts on the tensor cores: one program per expert and block of columns, gate-up and then down.

The shared expert counts as further experts that every row visits, see `MoeWeights`; its programs use taller blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from python_backends.talker.kernels.overlap import await_previous, launch_options, release_next
from python_backends.talker.kernels.triton_routing import Routing
from python_backends.talker.model.weights import MoeWeights

ROUTED_BLOCK = 16


@dataclass(frozen=True)
class MoeTiles:
    """Block sizes of the gate-up and down products; `shared_m` rows of the shared expert at once."""

    up_n: int = 128
    up_k: int = 64
    up_warps: int = 8
    up_stages: int = 3
    down_n: int = 128
    down_k: int = 64
    down_warps: int = 8
    down_stages: int = 4
    shared_m: int = 64


def moe_tiles(dtype: torch.dtype) -> MoeTiles:
    """Tiles for one dtype: exact float32 products use no tensor cores, hold twice the bytes and want small blocks."""
    if dtype == torch.float32:
        return MoeTiles(64, 32, 4, 2, 64, 32, 4, 2, shared_m=32)
    return MoeTiles()


@triton.jit
def _up_tile(normed_ptr, w_ptr, entry, column, middle_ptr, K: tl.constexpr, WIDTH: tl.constexpr,
             CHOICES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    ok = entry >= 0
    at = tl.where(ok, entry, 0) // CHOICES
    inner = tl.arange(0, BLOCK_K)
    x_at = normed_ptr + at[:, None] * K + inner[None, :]
    w_at = w_ptr + (column % WIDTH)[None, :] * K + inner[:, None]
    gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_at + k)
        gate = tl.dot(x, tl.load(w_at + k), gate, input_precision="ieee")
        up = tl.dot(x, tl.load(w_at + WIDTH * K + k), up, input_precision="ieee")
    middle = gate * tl.sigmoid(gate) * up
    to = middle_ptr + entry[:, None] * WIDTH + column[None, :]
    tl.store(to, middle.to(middle_ptr.dtype.element_ty), mask=ok[:, None] & (column[None, :] < WIDTH))


@triton.jit
def _down_tile(middle_ptr, w_ptr, share_ptr, entry, column, out_ptr, K: tl.constexpr, HIDDEN: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    ok = entry >= 0
    at = tl.where(ok, entry, 0)
    inner = tl.arange(0, BLOCK_K)
    x_at = middle_ptr + at[:, None] * K + inner[None, :]
    w_at = w_ptr + (column % HIDDEN)[None, :] * K + inner[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(x_at + k), tl.load(w_at + k), acc, input_precision="ieee")
    acc *= tl.load(share_ptr + at)[:, None]
    to = out_ptr + entry[:, None] * HIDDEN + column[None, :]
    tl.store(to, acc, mask=ok[:, None] & (column[None, :] < HIDDEN))


@triton.jit
def _shared_entries(expert, tile, rows, EXPERTS: tl.constexpr, SHARED: tl.constexpr, CHOICES: tl.constexpr,
                    BLOCK: tl.constexpr):  # fmt: skip
    row = tile * BLOCK + tl.arange(0, BLOCK)
    return tl.where(row < rows, row * CHOICES + CHOICES - SHARED + expert - EXPERTS, -1)


@triton.jit
def _routed_entries(entry_ptr, expert, tile, count, rows, BLOCK: tl.constexpr):
    rank = tile * BLOCK + tl.arange(0, BLOCK)
    return tl.load(entry_ptr + expert * rows + rank, mask=rank < count, other=-1)


@triton.jit(do_not_specialize=["rows"])
def _up_kernel(
    normed_ptr,
    gate_up_ptr,
    entry_ptr,
    count_ptr,
    middle_ptr,
    rows,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    EXPERTS: tl.constexpr,
    SHARED: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SHARED_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    # The shared expert has the most rows, so it comes first.
    expert = EXPERTS + SHARED - 1 - tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    w_ptr = gate_up_ptr + expert.to(tl.int64) * 2 * WIDTH * K
    await_previous(PDL)
    if expert >= EXPERTS:
        for tile in range(0, tl.cdiv(rows, SHARED_M)):
            entry = _shared_entries(expert, tile, rows, EXPERTS, SHARED, CHOICES, SHARED_M)
            _up_tile(normed_ptr, w_ptr, entry, column, middle_ptr, K, WIDTH, CHOICES, SHARED_M, BLOCK_N, BLOCK_K)
    else:
        count = tl.load(count_ptr + expert)
        for tile in range(0, tl.cdiv(count, BLOCK_M)):
            entry = _routed_entries(entry_ptr, expert, tile, count, rows, BLOCK_M)
            _up_tile(normed_ptr, w_ptr, entry, column, middle_ptr, K, WIDTH, CHOICES, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit(do_not_specialize=["rows"])
def _down_kernel(
    middle_ptr,
    down_ptr,
    share_ptr,
    entry_ptr,
    count_ptr,
    out_ptr,
    rows,
    K: tl.constexpr,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    SHARED: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SHARED_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    expert = EXPERTS + SHARED - 1 - tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    w_ptr = down_ptr + expert.to(tl.int64) * HIDDEN * K
    await_previous(PDL)
    if expert >= EXPERTS:
        for tile in range(0, tl.cdiv(rows, SHARED_M)):
            entry = _shared_entries(expert, tile, rows, EXPERTS, SHARED, CHOICES, SHARED_M)
            _down_tile(middle_ptr, w_ptr, share_ptr, entry, column, out_ptr, K, HIDDEN, SHARED_M, BLOCK_N, BLOCK_K)
    else:
        count = tl.load(count_ptr + expert)
        for tile in range(0, tl.cdiv(count, BLOCK_M)):
            entry = _routed_entries(entry_ptr, expert, tile, count, rows, BLOCK_M)
            _down_tile(middle_ptr, w_ptr, share_ptr, entry, column, out_ptr, K, HIDDEN, BLOCK_M, BLOCK_N, BLOCK_K)


def expert_parts(normed: torch.Tensor, weights: MoeWeights, routing: Routing, tiles: MoeTiles) -> torch.Tensor:
    """What each choice of each row adds, weighted: float32 [rows, top_k + shared, hidden]."""
    rows, hidden = normed.shape
    total, double, _ = weights.gate_up.shape
    width, choices = double // 2, weights.top_k + weights.shared
    middle = normed.new_empty(rows * choices, width)
    parts = torch.empty(rows, choices, hidden, device=normed.device, dtype=torch.float32)
    shared_m = min(tiles.shared_m, max(ROUTED_BLOCK, triton.next_power_of_2(rows)))
    sizes = dict(EXPERTS=total - weights.shared, SHARED=weights.shared, CHOICES=choices, BLOCK_M=ROUTED_BLOCK)
    _up_kernel[(total, triton.cdiv(width, tiles.up_n))](
        normed,
        weights.gate_up,
        routing.entries,
        routing.counts,
        middle,
        rows,
        K=hidden,
        WIDTH=width,
        SHARED_M=shared_m,
        BLOCK_N=tiles.up_n,
        BLOCK_K=math.gcd(tiles.up_k, hidden),
        num_warps=tiles.up_warps,
        num_stages=tiles.up_stages,
        **sizes,
        **launch_options(),
    )
    _down_kernel[(total, triton.cdiv(hidden, tiles.down_n))](
        middle,
        weights.down,
        routing.share,
        routing.entries,
        routing.counts,
        parts,
        rows,
        K=width,
        HIDDEN=hidden,
        SHARED_M=shared_m,
        BLOCK_N=tiles.down_n,
        BLOCK_K=math.gcd(tiles.down_k, width),
        num_warps=tiles.down_warps,
        num_stages=tiles.down_stages,
        **sizes,
        **launch_options(),
    )
    return parts
