"""Kernels that work row by row: embeddings, norms, and the sum of parts with the norm that follows it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backends.talker.kernels.overlap import await_previous, launch_options, release_next


@triton.jit
def _norm_kernel(x_ptr, weight_ptr, y_ptr, eps, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    release_next(PDL)
    row = tl.program_id(0)
    inner = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + inner, mask=inner < K, other=0.0).to(tl.float32)
    await_previous(PDL)
    x = tl.load(x_ptr + row * K + inner, mask=inner < K, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / K + eps)
    tl.store(y_ptr + row * K + inner, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=inner < K)


@triton.jit(do_not_specialize=["part_stride", "row_stride"])
def _sum_norm_kernel(
    part_ptr,
    residual_ptr,
    weight_ptr,
    x_ptr,
    normed_ptr,
    clear_ptr,
    part_stride,
    row_stride,
    eps,
    PARTS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    CLEAR: tl.constexpr,
    CLEAR_PAD: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    row = tl.program_id(0)
    inner = tl.arange(0, BLOCK)
    ok = inner < K
    weight = tl.load(weight_ptr + inner, mask=ok, other=0.0).to(tl.float32)
    await_previous(PDL)
    total = tl.load(residual_ptr + row * K + inner, mask=ok, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(part_ptr + (part * part_stride + row * row_stride) * K + inner, mask=ok, other=0.0)
    narrow = total.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + row * K + inner, narrow, mask=ok)
    x = narrow.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / K + eps)
    tl.store(normed_ptr + row * K + inner, (x * rstd * weight).to(narrow.dtype), mask=ok)
    if CLEAR > 0 and row == 0:
        place = tl.arange(0, CLEAR_PAD)
        tl.store(clear_ptr + place, tl.zeros([CLEAR_PAD], tl.int32), mask=place < CLEAR)


@triton.jit
def _embed_kernel(
    text_ptr,
    slot_ptr,
    codes_ptr,
    offsets_ptr,
    codec_ptr,
    table_ptr,
    y_ptr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    row = tl.program_id(0)
    inner = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = inner < K
    await_previous(PDL)
    slot = tl.load(slot_ptr + row)
    total = tl.load(table_ptr + tl.load(text_ptr + row) * K + inner, mask=ok, other=0.0).to(tl.float32)
    for group in tl.static_range(GROUPS):
        code = tl.load(codes_ptr + slot * GROUPS + group)
        at = codec_ptr + (tl.load(offsets_ptr + group) + code) * K + inner
        total += tl.load(at, mask=ok & (code + tl.zeros_like(inner) >= 0), other=0.0).to(tl.float32)
    tl.store(y_ptr + row * K + inner, total.to(y_ptr.dtype.element_ty), mask=ok)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of [rows, hidden]."""
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _norm_kernel[(len(x),)](x, weight, y, eps, K=x.shape[1], BLOCK=block, num_warps=4, **launch_options())
    return y


def sum_norm(
    parts: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    row_major: bool = False,
    clear: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """residual + the sum of `parts` float32 [parts, rows, hidden], and its RMSNorm.

    `row_major`: `parts` is [rows, parts, hidden]. `clear`: int32 counters to set to zero.
    """
    rows, hidden = residual.shape
    count = parts.shape[1] if row_major else len(parts)
    x, normed = torch.empty_like(residual), torch.empty_like(residual)
    _sum_norm_kernel[(rows,)](
        parts,
        residual,
        weight,
        x,
        normed,
        clear if clear is not None else parts,
        1 if row_major else rows,
        count if row_major else 1,
        eps,
        PARTS=count,
        K=hidden,
        BLOCK=triton.next_power_of_2(hidden),
        CLEAR=len(clear) if clear is not None else 0,
        CLEAR_PAD=triton.next_power_of_2(len(clear)) if clear is not None else 1,
        num_warps=4,
        **launch_options(),
    )
    return x, normed


def embed(
    text: torch.Tensor,
    slots: torch.Tensor,
    codes: torch.Tensor,
    codec_offsets: torch.Tensor,
    codec_table: torch.Tensor,
    text_table: torch.Tensor,
) -> torch.Tensor:
    """Sum of a text row and the codec rows of each slot's last codes int32 [slots, groups]: [rows, hidden]."""
    hidden = text_table.shape[1]
    y = text_table.new_empty(len(text), hidden)
    block = min(256, triton.next_power_of_2(hidden))
    _embed_kernel[(len(text), triton.cdiv(hidden, block))](
        text,
        slots,
        codes,
        codec_offsets,
        codec_table,
        text_table,
        y,
        GROUPS=codes.shape[1],
        K=hidden,
        BLOCK=block,
        num_warps=2,
        **launch_options(),
    )
    return y
