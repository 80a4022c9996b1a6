"""Decode attention over slot caches and over the code predictor's seventeen positions."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backends.talker.kernels.interface import Rotary
from python_backends.talker.kernels.overlap import await_previous, launch_options, release_next
from python_backends.talker.model.weights import AttentionWeights


@triton.jit
def _rotated(base, norm_ptr, cos_ptr, sin_ptr, eps, D: tl.constexpr):
    """Halves of one head, normalised and rotated, in float32."""
    half = tl.arange(0, D // 2)
    low = tl.load(base + half).to(tl.float32)
    high = tl.load(base + D // 2 + half).to(tl.float32)
    rstd = tl.rsqrt((tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0)) / D + eps)
    low = low * rstd * tl.load(norm_ptr + half).to(tl.float32)
    high = high * rstd * tl.load(norm_ptr + D // 2 + half).to(tl.float32)
    cos = tl.load(cos_ptr + half)
    sin = tl.load(sin_ptr + half)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _rotate_store_kernel(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    slot_ptr,
    cache_row_ptr,
    k_cache_ptr,
    v_cache_ptr,
    q_ptr,
    context,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    await_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = tl.arange(0, D // 2)
    base = qkv_ptr + (row * (HEADS + 2 * KV_HEADS) + head) * D
    cos_at, sin_at = cos_ptr + row * (D // 2), sin_ptr + row * (D // 2)
    cache_row = tl.load(slot_ptr + row) * context + tl.load(cache_row_ptr + row)
    if head < HEADS:
        low, high = _rotated(base, q_norm_ptr, cos_at, sin_at, eps, D)
        to = q_ptr + (row * HEADS + head) * D
        tl.store(to + half, low.to(q_ptr.dtype.element_ty))
        tl.store(to + D // 2 + half, high.to(q_ptr.dtype.element_ty))
    elif head < HEADS + KV_HEADS:
        low, high = _rotated(base, k_norm_ptr, cos_at, sin_at, eps, D)
        to = k_cache_ptr + (cache_row * KV_HEADS + head - HEADS) * D
        tl.store(to + half, low.to(k_cache_ptr.dtype.element_ty))
        tl.store(to + D // 2 + half, high.to(k_cache_ptr.dtype.element_ty))
    else:
        whole = tl.arange(0, D)
        to = v_cache_ptr + (cache_row * KV_HEADS + head - HEADS - KV_HEADS) * D
        tl.store(to + whole, tl.load(base + whole))


@triton.jit
def _decode_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    length_ptr,
    out_ptr,
    stats_ptr,
    context,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    await_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    group: tl.constexpr = HEADS // KV_HEADS
    length = tl.load(length_ptr + row)
    base = tl.load(slot_ptr + row) * context
    chunk = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    first = part * chunk
    last = tl.minimum(first + chunk, length)
    member = tl.arange(0, GROUP_PAD)
    head = kv_head * group + member
    whole = tl.arange(0, D)
    column = tl.arange(0, BLOCK)
    q_at = q_ptr + (row * HEADS + head[:, None]) * D + whole[None, :]
    q = tl.load(q_at, mask=member[:, None] < group, other=0.0)
    top = tl.full([GROUP_PAD], -1e30, dtype=tl.float32)
    total = tl.zeros([GROUP_PAD], dtype=tl.float32)
    acc = tl.zeros([GROUP_PAD, D], dtype=tl.float32)
    for start in range(first, last, BLOCK):
        at = start + column
        ok = at < last
        place = ((base + at) * KV_HEADS + kv_head) * D
        keys = tl.load(k_cache_ptr + place[None, :] + whole[:, None], mask=ok[None, :], other=0.0)
        values = tl.load(v_cache_ptr + place[:, None] + whole[None, :], mask=ok[:, None], other=0.0)
        score = tl.dot(q, keys, input_precision="ieee") * scale
        score = tl.where(ok[None, :], score, -1e30)
        new_top = tl.maximum(top, tl.max(score, axis=1))
        decay = tl.exp(top - new_top)
        share = tl.exp(score - new_top[:, None])
        share = tl.where(ok[None, :], share, 0.0)
        total = total * decay + tl.sum(share, axis=1)
        acc = acc * decay[:, None]
        acc = tl.dot(share.to(values.dtype), values, acc, input_precision="ieee")
        top = new_top
    mine = (row * HEADS + head) * SPLITS + part
    tl.store(out_ptr + mine[:, None] * D + whole[None, :], acc, mask=member[:, None] < group)
    tl.store(stats_ptr + mine * 2, top, mask=member < group)
    tl.store(stats_ptr + mine * 2 + 1, total, mask=member < group)


@triton.jit
def _combine_kernel(part_ptr, stats_ptr, out_ptr, HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
                    PDL: tl.constexpr):  # fmt: skip
    release_next(PDL)
    await_previous(PDL)
    at = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    part = tl.arange(0, SPLITS)
    whole = tl.arange(0, D)
    top = tl.load(stats_ptr + (at * SPLITS + part) * 2)
    total = tl.load(stats_ptr + (at * SPLITS + part) * 2 + 1)
    weight = tl.exp(top - tl.max(top, axis=0))
    acc = tl.load(part_ptr + (at * SPLITS + part[:, None]) * D + whole[None, :])
    out = tl.sum(acc * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    tl.store(out_ptr + at * D + whole, out.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["batch", "first"])
def _predictor_kernel(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    batch,
    first,
    scale,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    POSITIONS: tl.constexpr,
    PAD: tl.constexpr,
    NEW: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    await_previous(PDL)
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    half = tl.arange(0, D // 2)
    whole = tl.arange(0, D)
    position = tl.arange(0, PAD)
    old = position < first
    place = ((sequence * POSITIONS + position) * KV_HEADS + kv_head) * D
    keys_low = tl.load(k_ptr + place[:, None] + half[None, :], mask=old[:, None], other=0.0).to(tl.float32)
    keys_high = tl.load(k_ptr + place[:, None] + D // 2 + half[None, :], mask=old[:, None], other=0.0).to(tl.float32)
    values = tl.load(v_ptr + place[:, None] + whole[None, :], mask=old[:, None], other=0.0).to(tl.float32)
    kind = k_ptr.dtype.element_ty
    for new in tl.static_range(NEW):
        base = qkv_ptr + (new * batch + sequence) * (HEADS + 2 * KV_HEADS) * D
        angle = (first + new) * (D // 2)
        low, high = _rotated(base + (HEADS + kv_head) * D, k_norm_ptr, cos_ptr + angle, sin_ptr + angle, eps, D)
        low, high = low.to(kind), high.to(kind)
        value = tl.load(base + (HEADS + KV_HEADS + kv_head) * D + whole)
        to = ((sequence * POSITIONS + first + new) * KV_HEADS + kv_head) * D
        tl.store(k_ptr + to + half, low)
        tl.store(k_ptr + to + D // 2 + half, high)
        tl.store(v_ptr + to + whole, value)
        is_new = (position == first + new)[:, None]
        keys_low = tl.where(is_new, low.to(tl.float32)[None, :], keys_low)
        keys_high = tl.where(is_new, high.to(tl.float32)[None, :], keys_high)
        values = tl.where(is_new, value.to(tl.float32)[None, :], values)
    for new in tl.static_range(NEW):
        row = new * batch + sequence
        angle = (first + new) * (D // 2)
        for member in tl.static_range(group):
            head = kv_head * group + member
            base = qkv_ptr + (row * (HEADS + 2 * KV_HEADS) + head) * D
            low, high = _rotated(base, q_norm_ptr, cos_ptr + angle, sin_ptr + angle, eps, D)
            low, high = low.to(kind).to(tl.float32), high.to(kind).to(tl.float32)
            score = tl.sum(keys_low * low[None, :], axis=1) + tl.sum(keys_high * high[None, :], axis=1)
            score = tl.where(position <= first + new, score * scale, -1e30)
            share = tl.exp(score - tl.max(score, axis=0))
            out = tl.sum(share[:, None] * values, axis=0) / tl.sum(share, axis=0)
            tl.store(out_ptr + (row * HEADS + head) * D + whole, out.to(out_ptr.dtype.element_ty))


def rotate_store(
    qkv: torch.Tensor,
    weights: AttentionWeights,
    rotary: Rotary,
    slots: torch.Tensor,
    cache_rows: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """See `Kernels.rotate_store`."""
    rows, dim = len(qkv), weights.q_norm.shape[0]
    heads, kv_heads = weights.out.shape[1] // dim, k_cache.shape[2]
    q = qkv.new_empty(rows, heads, dim)
    _rotate_store_kernel[(rows, heads + 2 * kv_heads)](
        qkv,
        weights.q_norm,
        weights.k_norm,
        rotary.cos,
        rotary.sin,
        slots,
        cache_rows,
        k_cache,
        v_cache,
        q,
        k_cache.shape[1],
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=dim,
        num_warps=1,
        **launch_options(),
    )
    return q


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    splits: int,
    block: int = 64,
    warps: int = 4,
    stages: int = 3,
) -> torch.Tensor:
    """See `Kernels.decode_attention`; each context is cut into `splits` parts by its own length alone."""
    rows, heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    part = torch.empty(rows, heads, splits, dim, device=q.device, dtype=torch.float32)
    stats = torch.empty(rows, heads, splits, 2, device=q.device, dtype=torch.float32)
    out = q.new_empty(rows, heads * dim)
    _decode_kernel[(rows, kv_heads, splits)](
        q,
        k_cache,
        v_cache,
        slots,
        lengths,
        part,
        stats,
        k_cache.shape[1],
        dim**-0.5,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=dim,
        SPLITS=splits,
        BLOCK=block,
        GROUP_PAD=max(16, triton.next_power_of_2(heads // kv_heads)),
        num_warps=warps,
        num_stages=stages,
        **launch_options(),
    )
    _combine_kernel[(rows, heads)](part, stats, out, HEADS=heads, D=dim, SPLITS=splits, num_warps=1, **launch_options())
    return out


def predictor_attention(
    qkv: torch.Tensor,
    weights: AttentionWeights,
    rotary: Rotary,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    first: int,
    eps: float,
    warps: int = 1,
) -> torch.Tensor:
    """See `Kernels.predictor_attention`."""
    batch, positions, kv_heads, dim = k_buffer.shape
    new = len(qkv) // batch
    heads = weights.out.shape[1] // dim
    out = qkv.new_empty(len(qkv), heads * dim)
    _predictor_kernel[(batch, kv_heads)](
        qkv,
        weights.q_norm,
        weights.k_norm,
        rotary.cos,
        rotary.sin,
        k_buffer,
        v_buffer,
        out,
        batch,
        first,
        dim**-0.5,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=dim,
        POSITIONS=positions,
        PAD=triton.next_power_of_2(first + new),
        NEW=new,
        num_warps=warps,
        **launch_options(),
    )
    return out
