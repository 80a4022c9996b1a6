"""Small-batch linear layers: weights stream through once, norms and activations ride along."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Tile:
    """Block sizes of one launch; `split` programs share the reduction axis of each output tile."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 4
    split: int = 1


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x_ptr,
    w_ptr,
    norm_ptr,
    residual_ptr,
    y_ptr,
    partial_ptr,
    counter_ptr,
    rows,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):
    tile_n = tl.program_id(0)
    tile_m = tl.program_id(1)
    part = tl.program_id(2)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = part * (K // SPLIT) + tl.arange(0, BLOCK_K)
    row_ok = row[:, None] < rows
    column_ok = column[None, :] < N
    x_at = x_ptr + row[:, None] * K + inner[None, :]
    w_at = w_ptr + column[None, :] * K + inner[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    acc_up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    square = tl.zeros([BLOCK_M], dtype=tl.float32)
    for k in range(0, K // SPLIT, BLOCK_K):
        inside = inner + k < K
        x = tl.load(x_at + k, mask=row_ok & inside[None, :], other=0.0)
        w = tl.load(w_at + k, mask=column_ok & inside[:, None], other=0.0)
        if NORM:
            wide = x.to(tl.float32)
            square += tl.sum(wide * wide, axis=1)
            scale = tl.load(norm_ptr + inner + k, mask=inside, other=0.0).to(tl.float32)
            x = (wide * scale[None, :]).to(w.dtype)
        acc = tl.dot(x, w, acc, input_precision="ieee")
        if GATED:
            up = tl.load(w_at + N * K + k, mask=column_ok & inside[:, None], other=0.0)
            acc_up = tl.dot(x, up, acc_up, input_precision="ieee")
    ok = row_ok & column_ok
    at = row[:, None] * N + column[None, :]
    if SPLIT > 1:
        # The last program to arrive adds the parts in their order, so the sum does not depend on timing.
        tl.store(partial_ptr + part * rows * N + at, acc, mask=ok)
        tl.debug_barrier()
        place = counter_ptr + tile_m * tl.num_programs(0) + tile_n
        arrived = tl.atomic_add(place, 1, sem="acq_rel")
        if arrived == SPLIT - 1:
            total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
            for index in tl.static_range(SPLIT):
                total += tl.load(partial_ptr + index * rows * N + at, mask=ok, other=0.0, cache_modifier=".cg")
            if RESIDUAL:
                total += tl.load(residual_ptr + at, mask=ok, other=0.0).to(tl.float32)
            tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=ok)
            tl.store(place, 0)
    else:
        if NORM:
            rstd = tl.rsqrt(square / K + eps)
            acc = acc * rstd[:, None]
            acc_up = acc_up * rstd[:, None]
        if GATED:
            acc = acc * tl.sigmoid(acc) * acc_up
        if RESIDUAL:
            acc += tl.load(residual_ptr + at, mask=ok, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _norm_kernel(x_ptr, weight_ptr, y_ptr, eps, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    inner = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * K + inner, mask=inner < K, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + inner, mask=inner < K, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / K + eps)
    tl.store(y_ptr + row * K + inner, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=inner < K)


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
):
    row = tl.program_id(0)
    inner = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = inner < K
    slot = tl.load(slot_ptr + row)
    total = tl.load(table_ptr + tl.load(text_ptr + row) * K + inner, mask=ok, other=0.0).to(tl.float32)
    for group in tl.static_range(GROUPS):
        code = tl.load(codes_ptr + slot * GROUPS + group)
        at = codec_ptr + (tl.load(offsets_ptr + group) + code) * K + inner
        total += tl.load(at, mask=ok & (code + tl.zeros_like(inner) >= 0), other=0.0).to(tl.float32)
    tl.store(y_ptr + row * K + inner, total.to(y_ptr.dtype.element_ty), mask=ok)


class SplitScratch:
    """Partial sums and arrival counters of split launches; counters return to zero by themselves."""

    def __init__(self, device: torch.device, values: int = 1 << 22, tiles: int = 4096) -> None:
        self.partial = torch.empty(values, device=device, dtype=torch.float32)
        self.counter = torch.zeros(tiles, device=device, dtype=torch.int32)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    tile: Tile,
    scratch: SplitScratch,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """norm(x) @ weight^T, then SiLU gating or a residual: [rows, columns] in the dtype of `x`.

    `gated`: `weight` holds gate rows, then as many up rows. A norm or a gate needs `tile.split` 1.
    """
    rows, inner = x.shape
    columns = len(weight) // 2 if gated else len(weight)
    if tile.split > 1 and (norm is not None or gated or inner % (tile.split * tile.k)):
        raise ValueError("a split reduction takes neither norm nor gate, and whole blocks")
    y = x.new_empty(rows, columns)
    grid = (triton.cdiv(columns, tile.n), triton.cdiv(rows, tile.m), tile.split)
    _linear_kernel[grid](
        x,
        weight,
        norm if norm is not None else weight,
        residual if residual is not None else x,
        y,
        scratch.partial,
        scratch.counter,
        rows,
        eps,
        N=columns,
        K=inner,
        NORM=norm is not None,
        GATED=gated,
        RESIDUAL=residual is not None,
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        BLOCK_K=tile.k,
        SPLIT=tile.split,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of [rows, hidden]."""
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _norm_kernel[(len(x),)](x, weight, y, eps, K=x.shape[1], BLOCK=block, num_warps=4)
    return y


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
    )
    return y
