"""Attention of prompt rows over their slots' caches, and the sum over a row's experts, for many rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backends.talker.kernels.overlap import await_previous, launch_options, release_next
from python_backends.talker.kernels.prefill_layout import TILE_ROWS, PrefillLayout, TileLayout


@triton.jit
def _prefill_attention_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    tile_ptr,
    out_ptr,
    context,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    await_previous(PDL)
    tile = tile_ptr + tl.program_id(0) * 4
    head = tl.program_id(1)
    first, count = tl.load(tile), tl.load(tile + 1)
    base, position = tl.load(tile + 2) * context, tl.load(tile + 3)
    member = tl.arange(0, BLOCK_M)
    whole = tl.arange(0, D)
    ok = member < count
    at = ((first + member[:, None]) * HEADS + head) * D + whole[None, :]
    q = tl.load(q_ptr + at, mask=ok[:, None], other=0.0)
    end = position + count
    top = tl.full([BLOCK_M], -1e30, dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    for begin in range(0, end, BLOCK_N):
        column = begin + tl.arange(0, BLOCK_N)
        inside = column < end
        place = ((base + column) * KV_HEADS + head // (HEADS // KV_HEADS)) * D
        keys = tl.load(k_cache_ptr + place[None, :] + whole[:, None], mask=inside[None, :], other=0.0)
        values = tl.load(v_cache_ptr + place[:, None] + whole[None, :], mask=inside[:, None], other=0.0)
        score = tl.dot(q, keys, input_precision="ieee") * scale
        score = tl.where(column[None, :] <= position + member[:, None], score, -1e30)
        new_top = tl.maximum(top, tl.max(score, axis=1))
        decay = tl.exp(top - new_top)
        share = tl.exp(score - new_top[:, None])
        total = total * decay + tl.sum(share, axis=1)
        acc = tl.dot(share.to(values.dtype), values, acc * decay[:, None], input_precision="ieee")
        top = new_top
    tl.store(out_ptr + at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=ok[:, None])


@triton.jit
def _gather_sum_norm_kernel(
    entry_ptr,
    place_ptr,
    share_ptr,
    residual_ptr,
    weight_ptr,
    x_ptr,
    normed_ptr,
    eps,
    CHOICES: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    await_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    inner = tl.arange(0, BLOCK)
    ok = inner < K
    total = tl.load(residual_ptr + row * K + inner, mask=ok, other=0.0).to(tl.float32)
    for choice in tl.static_range(CHOICES):
        place = tl.load(place_ptr + row * CHOICES + choice)
        part = tl.load(entry_ptr + place * K + inner, mask=ok, other=0.0).to(tl.float32)
        total += part * tl.load(share_ptr + row * CHOICES + choice)
    narrow = total.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + row * K + inner, narrow, mask=ok)
    x = narrow.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / K + eps)
    weight = tl.load(weight_ptr + inner, mask=ok, other=0.0).to(tl.float32)
    tl.store(normed_ptr + row * K + inner, (x * rstd * weight).to(narrow.dtype), mask=ok)


def prefill_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, layout: PrefillLayout | TileLayout
) -> torch.Tensor:
    """See `Kernels.prefill_attention`."""
    rows, heads, dim = q.shape
    tiles = layout.tiles
    out = q.new_empty(rows, heads * dim)
    _prefill_attention_kernel[(len(tiles), heads)](
        q,
        k_cache,
        v_cache,
        tiles,
        out,
        k_cache.shape[1],
        dim**-0.5,
        HEADS=heads,
        KV_HEADS=k_cache.shape[2],
        D=dim,
        BLOCK_M=TILE_ROWS,
        BLOCK_N=64,
        num_warps=4,
        num_stages=2,
        **launch_options(),
    )
    return out


def gather_sum_norm(
    entries: torch.Tensor,
    places: torch.Tensor,
    share: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """residual + each row's weighted `entries` [entries, hidden], and its RMSNorm; choice c of row r lies at
    `places` int64 [rows * choices] and weighs `share` float32 [rows, choices]."""
    rows, hidden = residual.shape
    x, normed = torch.empty_like(residual), torch.empty_like(residual)
    _gather_sum_norm_kernel[(rows,)](
        entries,
        places,
        share,
        residual,
        weight,
        x,
        normed,
        eps,
        CHOICES=share.shape[1],
        K=hidden,
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=4,
        **launch_options(),
    )
    return x, normed
