"""Mixture of experts for small batches: routing, two grouped products, and their sum, in four launches.

An entry is one (row, choice) pair; entry j belongs to row j // choices. Programs find their expert's entries in the
flat list of ids themselves, so that no sorting pass is needed. The shared expert counts as further experts that every
row visits, see `MoeWeights`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from python_backends.talker.weights import MoeWeights


@dataclass(frozen=True)
class MoeTiles:
    """Block sizes of the gate-up and down products. `per_entry`: one program per entry, for the smallest batches."""

    per_entry: bool
    up_n: int = 64
    up_k: int = 128
    up_warps: int = 4
    up_stages: int = 3
    down_n: int = 64
    down_k: int = 128
    down_warps: int = 4
    down_stages: int = 3
    route_m: int = 16


@triton.jit(do_not_specialize=["rows"])
def _route_kernel(
    x_ptr,
    norm_ptr,
    router_ptr,
    gate_ptr,
    normed_ptr,
    id_ptr,
    weight_ptr,
    rows,
    eps,
    K: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    TOP: tl.constexpr,
    SHARED: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    expert = tl.arange(0, EXPERTS_PAD)
    inner = tl.arange(0, BLOCK_K)
    ok = row < rows
    square = tl.zeros([BLOCK_M], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptr + row[:, None] * K + k + inner[None, :], mask=ok[:, None], other=0.0).to(tl.float32)
        square += tl.sum(x * x, axis=1)
    rstd = tl.rsqrt(square / K + eps)
    logits = tl.zeros([BLOCK_M, EXPERTS_PAD], dtype=tl.float32)
    gate = tl.zeros([BLOCK_M], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        at = row[:, None] * K + k + inner[None, :]
        x = tl.load(x_ptr + at, mask=ok[:, None], other=0.0).to(tl.float32)
        normed = x * rstd[:, None] * tl.load(norm_ptr + k + inner).to(tl.float32)[None, :]
        narrow = normed.to(normed_ptr.dtype.element_ty)
        tl.store(normed_ptr + at, narrow, mask=ok[:, None])
        gate += tl.sum(narrow.to(tl.float32) * tl.load(gate_ptr + k + inner).to(tl.float32)[None, :], axis=1)
        router_at = router_ptr + expert[None, :] * K + k + inner[:, None]
        router = tl.load(router_at, mask=expert[None, :] < EXPERTS, other=0.0)
        logits = tl.dot(narrow, router, logits, input_precision="ieee")
    logits = tl.where(expert[None, :] < EXPERTS, logits, -float("inf"))
    share = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    whole = tl.sum(share, axis=1)
    left = share
    kept = tl.zeros([BLOCK_M], dtype=tl.float32)
    for _ in tl.static_range(TOP):
        best = tl.max(left, axis=1)
        index = tl.argmax(left, axis=1, tie_break_left=True)
        kept += best
        left = tl.where(expert[None, :] == index[:, None], -1.0, left)
    divisor = kept if NORMALISE else whole
    left = share
    choices: tl.constexpr = TOP + SHARED
    for choice in tl.static_range(TOP):
        best = tl.max(left, axis=1)
        index = tl.argmax(left, axis=1, tie_break_left=True)
        left = tl.where(expert[None, :] == index[:, None], -1.0, left)
        tl.store(id_ptr + row * choices + choice, index, mask=ok)
        tl.store(weight_ptr + row * choices + choice, best / divisor, mask=ok)
    for choice in tl.static_range(SHARED):
        tl.store(id_ptr + row * choices + TOP + choice, tl.full([BLOCK_M], EXPERTS + choice, tl.int32), mask=ok)
        tl.store(weight_ptr + row * choices + TOP + choice, tl.sigmoid(gate), mask=ok)


@triton.jit
def _members(mine, rank, tile, ENTRIES_PAD: tl.constexpr, BLOCK_M: tl.constexpr):
    """Entries number tile * BLOCK_M and following among those of one expert; -1 past the last."""
    entry = tl.arange(0, ENTRIES_PAD)
    wanted = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    hit = (mine[None, :] != 0) & (rank[None, :] == wanted[:, None])
    return tl.sum(tl.where(hit, entry[None, :] + 1, 0), axis=1) - 1


@triton.jit
def _expert_tile(a_ptr, w_at, at, ok, column_ok, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 BLOCK_K: tl.constexpr):  # fmt: skip
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = k + inner < K
        a = tl.load(a_ptr + at[:, None] * K + k + inner[None, :], mask=ok[:, None] & inside[None, :], other=0.0)
        w = tl.load(w_at + k + inner[:, None], mask=column_ok[None, :] & inside[:, None], other=0.0)
        acc = tl.dot(a, w, acc, input_precision="ieee")
    return acc


@triton.jit
def _up_tile(normed_ptr, gate_up_ptr, expert, entry, column, middle_ptr, K: tl.constexpr, WIDTH: tl.constexpr,
             CHOICES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    ok = entry >= 0
    at = tl.where(ok, entry, 0) // CHOICES
    column_ok = column < WIDTH
    inner = tl.arange(0, BLOCK_K)
    base = gate_up_ptr + expert.to(tl.int64) * 2 * WIDTH * K + column[None, :] * K
    gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = k + inner < K
        x = tl.load(normed_ptr + at[:, None] * K + k + inner[None, :], mask=ok[:, None] & inside[None, :], other=0.0)
        w_ok = column_ok[None, :] & inside[:, None]
        w = tl.load(base + k + inner[:, None], mask=w_ok, other=0.0)
        gate = tl.dot(x, w, gate, input_precision="ieee")
        w_up = tl.load(base + WIDTH * K + k + inner[:, None], mask=w_ok, other=0.0)
        up = tl.dot(x, w_up, up, input_precision="ieee")
    middle = gate * tl.sigmoid(gate) * up
    to = middle_ptr + tl.where(ok, entry, 0)[:, None] * WIDTH + column[None, :]
    tl.store(to, middle.to(middle_ptr.dtype.element_ty), mask=ok[:, None] & column_ok[None, :])


@triton.jit(do_not_specialize=["entries", "experts"])
def _up_kernel(
    normed_ptr,
    gate_up_ptr,
    id_ptr,
    middle_ptr,
    entries,
    experts,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    CHOICES: tl.constexpr,
    ENTRIES_PAD: tl.constexpr,
    PER_ENTRY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if PER_ENTRY:
        only = tl.program_id(0)
        entry = tl.where(tl.arange(0, BLOCK_M) == 0, only, -1)
        expert = tl.load(id_ptr + only)
        _up_tile(normed_ptr, gate_up_ptr, expert, entry, column, middle_ptr, K, WIDTH, CHOICES, BLOCK_M, BLOCK_N,
                 BLOCK_K)  # fmt: skip
    else:
        # The shared experts have the most entries, so they come first.
        expert = experts - 1 - tl.program_id(0)
        index = tl.arange(0, ENTRIES_PAD)
        mine = (tl.load(id_ptr + index, mask=index < entries, other=-1) == expert).to(tl.int32)
        rank = tl.cumsum(mine, axis=0) - 1
        count = tl.sum(mine, axis=0)
        for tile in range(0, tl.cdiv(count, BLOCK_M)):
            entry = _members(mine, rank, tile, ENTRIES_PAD, BLOCK_M)
            _up_tile(normed_ptr, gate_up_ptr, expert, entry, column, middle_ptr, K, WIDTH, CHOICES, BLOCK_M, BLOCK_N,
                     BLOCK_K)  # fmt: skip


@triton.jit
def _down_tile(middle_ptr, down_ptr, weight_ptr, expert, entry, column, out_ptr, K: tl.constexpr, HIDDEN: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    ok = entry >= 0
    at = tl.where(ok, entry, 0)
    column_ok = column < HIDDEN
    base = down_ptr + expert.to(tl.int64) * HIDDEN * K + column[None, :] * K
    acc = _expert_tile(middle_ptr, base, at, ok, column_ok, K, BLOCK_M, BLOCK_N, BLOCK_K)
    acc *= tl.load(weight_ptr + at, mask=ok, other=0.0)[:, None]
    tl.store(out_ptr + at[:, None] * HIDDEN + column[None, :], acc, mask=ok[:, None] & column_ok[None, :])


@triton.jit(do_not_specialize=["entries", "experts"])
def _down_kernel(
    middle_ptr,
    down_ptr,
    weight_ptr,
    id_ptr,
    out_ptr,
    entries,
    experts,
    K: tl.constexpr,
    HIDDEN: tl.constexpr,
    ENTRIES_PAD: tl.constexpr,
    PER_ENTRY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if PER_ENTRY:
        only = tl.program_id(0)
        entry = tl.where(tl.arange(0, BLOCK_M) == 0, only, -1)
        expert = tl.load(id_ptr + only)
        _down_tile(middle_ptr, down_ptr, weight_ptr, expert, entry, column, out_ptr, K, HIDDEN, BLOCK_M, BLOCK_N,
                   BLOCK_K)  # fmt: skip
    else:
        expert = experts - 1 - tl.program_id(0)
        index = tl.arange(0, ENTRIES_PAD)
        mine = (tl.load(id_ptr + index, mask=index < entries, other=-1) == expert).to(tl.int32)
        rank = tl.cumsum(mine, axis=0) - 1
        count = tl.sum(mine, axis=0)
        for tile in range(0, tl.cdiv(count, BLOCK_M)):
            entry = _members(mine, rank, tile, ENTRIES_PAD, BLOCK_M)
            _down_tile(middle_ptr, down_ptr, weight_ptr, expert, entry, column, out_ptr, K, HIDDEN, BLOCK_M, BLOCK_N,
                       BLOCK_K)  # fmt: skip


@triton.jit
def _sum_kernel(x_ptr, part_ptr, y_ptr, HIDDEN: tl.constexpr, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    inner = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = inner < HIDDEN
    total = tl.load(x_ptr + row * HIDDEN + inner, mask=ok, other=0.0).to(tl.float32)
    for choice in tl.static_range(CHOICES):
        total += tl.load(part_ptr + (row * CHOICES + choice) * HIDDEN + inner, mask=ok, other=0.0)
    tl.store(y_ptr + row * HIDDEN + inner, total.to(y_ptr.dtype.element_ty), mask=ok)


def route(
    x: torch.Tensor, weights: MoeWeights, eps: float, block_m: int = 16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalised rows, expert ids int32 and weights float32 [rows, top_k + shared]."""
    rows, hidden = x.shape
    choices = weights.top_k + weights.shared
    normed = torch.empty_like(x)
    ids = torch.empty(rows, choices, device=x.device, dtype=torch.int32)
    share = torch.empty(rows, choices, device=x.device, dtype=torch.float32)
    _route_kernel[(triton.cdiv(rows, block_m),)](
        x,
        weights.norm,
        weights.router,
        weights.shared_gate,
        normed,
        ids,
        share,
        rows,
        eps,
        K=hidden,
        EXPERTS=len(weights.router),
        EXPERTS_PAD=max(16, triton.next_power_of_2(len(weights.router))),
        TOP=weights.top_k,
        SHARED=weights.shared,
        NORMALISE=weights.normalise,
        BLOCK_M=block_m,
        BLOCK_K=min(128, hidden),
        num_warps=4,
        num_stages=3,
    )
    return normed, ids, share


def moe(x: torch.Tensor, weights: MoeWeights, eps: float, tiles: MoeTiles) -> torch.Tensor:
    """See `Kernels.moe`."""
    rows, hidden = x.shape
    experts, double, _ = weights.gate_up.shape
    width, choices = double // 2, weights.top_k + weights.shared
    entries = rows * choices
    normed, ids, share = route(x, weights, eps, tiles.route_m)
    middle = x.new_empty(entries, width)
    part = torch.empty(entries, hidden, device=x.device, dtype=torch.float32)
    y = torch.empty_like(x)
    first = entries if tiles.per_entry else experts
    pad = 16 if tiles.per_entry else max(16, triton.next_power_of_2(entries))
    _up_kernel[(first, triton.cdiv(width, tiles.up_n))](
        normed,
        weights.gate_up,
        ids,
        middle,
        entries,
        experts,
        K=hidden,
        WIDTH=width,
        CHOICES=choices,
        ENTRIES_PAD=pad,
        PER_ENTRY=tiles.per_entry,
        BLOCK_M=16,
        BLOCK_N=tiles.up_n,
        BLOCK_K=tiles.up_k,
        num_warps=tiles.up_warps,
        num_stages=tiles.up_stages,
    )
    _down_kernel[(first, triton.cdiv(hidden, tiles.down_n))](
        middle,
        weights.down,
        share,
        ids,
        part,
        entries,
        experts,
        K=width,
        HIDDEN=hidden,
        ENTRIES_PAD=pad,
        PER_ENTRY=tiles.per_entry,
        BLOCK_M=16,
        BLOCK_N=tiles.down_n,
        BLOCK_K=tiles.down_k,
        num_warps=tiles.down_warps,
        num_stages=tiles.down_stages,
    )
    block = min(256, triton.next_power_of_2(hidden))
    _sum_kernel[(rows, triton.cdiv(hidden, block))](
        x, part, y, HIDDEN=hidden, CHOICES=choices, BLOCK=block, num_warps=2
    )
    return y
