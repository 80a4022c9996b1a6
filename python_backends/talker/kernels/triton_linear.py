"""Linear layers of small batches, bound by the traffic of their weights.

Two kinds: a matrix kernel on the tensor cores whose programs may share the reduction axis, and a vector kernel for the
smallest batches that holds its whole slice of the weights in registers before its input is there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from python_backends.talker.kernels.overlap import await_previous, launch_options, release_next

SMALLEST_DOT = 16


@dataclass(frozen=True)
class Tile:
    """Block sizes of one matrix launch; `split` programs share the reduction axis of each output tile."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 4
    split: int = 1

    def fitted(self, inner: int) -> Tile:
        """The same tile, with blocks and parts that divide a reduction axis of `inner`."""
        k, split = math.gcd(self.k, inner), self.split
        while inner % (split * k):
            split //= 2
        return replace(self, k=k, split=split)


@dataclass(frozen=True)
class VectorTile:
    """Columns and warps of one program of the vector kernel."""

    n: int
    warps: int = 4


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    part = tl.program_id(2)
    span: tl.constexpr = K // SPLIT
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns past the end repeat others instead of being masked; they are not stored.
    inner = part * span + tl.arange(0, BLOCK_K)
    w_at = w_ptr + (column % N)[None, :] * K + inner[:, None]
    await_previous(PDL)
    x_at = x_ptr + (row % rows)[:, None] * K + inner[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    acc_up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in range(0, span, BLOCK_K):
        x = tl.load(x_at + k)
        acc = tl.dot(x, tl.load(w_at + k), acc, input_precision="ieee")
        if GATED:
            acc_up = tl.dot(x, tl.load(w_at + N * K + k), acc_up, input_precision="ieee")
    # Not earlier: programs of later kernels would crowd onto the multiprocessors that these leave free.
    release_next(PDL)
    if GATED:
        acc = acc * tl.sigmoid(acc) * acc_up
    at = y_ptr + (part * rows + row[:, None]) * N + column[None, :]
    tl.store(at, acc.to(y_ptr.dtype.element_ty), mask=(row[:, None] < rows) & (column[None, :] < N))


@triton.jit
def _vector_kernel(
    x_ptr,
    w_ptr,
    norm_ptr,
    residual_ptr,
    y_ptr,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, K_PAD)
    inside = inner < K
    at = (column % N)[:, None] * K + inner[None, :]
    w = tl.load(w_ptr + at, mask=inside[None, :], other=0.0)
    if GATED:
        up = tl.load(w_ptr + N * K + at, mask=inside[None, :], other=0.0)
    if NORM:
        scale = tl.load(norm_ptr + inner, mask=inside, other=0.0).to(tl.float32)
    await_previous(PDL)
    for row in tl.static_range(ROWS):
        x = tl.load(x_ptr + row * K + inner, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            x = x * tl.rsqrt(tl.sum(x * x, axis=0) / K + eps) * scale
            x = x.to(w.dtype).to(tl.float32)
        y = tl.sum(w.to(tl.float32) * x[None, :], axis=1)
        if GATED:
            y = y * tl.sigmoid(y) * tl.sum(up.to(tl.float32) * x[None, :], axis=1)
        if RESIDUAL:
            y += tl.load(residual_ptr + row * N + column, mask=column < N, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * N + column, y.to(y_ptr.dtype.element_ty), mask=column < N)


def linear(x: torch.Tensor, weight: torch.Tensor, tile: Tile, *, gated: bool = False) -> torch.Tensor:
    """x @ weight^T: [rows, columns] in the dtype of `x`.

    `gated`: `weight` holds gate rows, then as many up rows; gives silu(gate) * up.
    """
    return _matrix(x, weight, replace(tile, split=1), gated, x.dtype)[0]


def linear_parts(x: torch.Tensor, weight: torch.Tensor, tile: Tile) -> torch.Tensor:
    """Parts float32 [parts, rows, columns] whose sum is x @ weight^T."""
    return _matrix(x, weight, tile, False, torch.float32)


def _matrix(x: torch.Tensor, weight: torch.Tensor, tile: Tile, gated: bool, dtype: torch.dtype) -> torch.Tensor:
    rows, inner = x.shape
    columns = len(weight) // 2 if gated else len(weight)
    tile = tile.fitted(inner)
    if tile.k < SMALLEST_DOT:
        raise ValueError(f"a width of {inner} has no factor of {SMALLEST_DOT}")
    y = torch.empty(tile.split, rows, columns, device=x.device, dtype=dtype)
    _linear_kernel[(triton.cdiv(columns, tile.n), triton.cdiv(rows, tile.m), tile.split)](
        x,
        weight,
        y,
        rows,
        N=columns,
        K=inner,
        GATED=gated,
        SPLIT=tile.split,
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        BLOCK_K=tile.k,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch_options(),
    )
    return y


def vector_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    tile: VectorTile,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """norm(x) @ weight^T, then SiLU gating, then a residual: [rows, columns]; for a few rows only."""
    rows, inner = x.shape
    columns = len(weight) // 2 if gated else len(weight)
    y = torch.empty(rows, columns, device=x.device, dtype=dtype or x.dtype)
    _vector_kernel[(triton.cdiv(columns, tile.n),)](
        x,
        weight,
        norm if norm is not None else weight,
        residual if residual is not None else x,
        y,
        eps,
        N=columns,
        K=inner,
        K_PAD=triton.next_power_of_2(inner),
        ROWS=rows,
        NORM=norm is not None,
        GATED=gated,
        RESIDUAL=residual is not None,
        BLOCK_N=tile.n,
        num_warps=tile.warps,
        **launch_options(),
    )
    return y
