"""Code2Wav's operations as Triton kernels. Shapes that the kernels do not take fall back to the PyTorch operations."""

from __future__ import annotations

from typing import Any

import torch
import triton

from python_backends.code2wav.kernels.attention import roll_kernel, rotate_kernel, window_attention_kernel
from python_backends.code2wav.kernels.gemm import tap_gemm_kernel
from python_backends.code2wav.kernels.rows import (
    depthwise_norm_kernel,
    rms_norm_kernel,
    silu_gate_kernel,
    waveform_kernel,
)
from python_backends.code2wav.ops import Batch, Ops
from python_backends.code2wav.parameters import Snake, TapConv
from python_backends.code2wav.plan import H200_PLAN, GemmTile, KernelPlan


def _precision(tensor: torch.Tensor) -> str:
    return "ieee" if tensor.dtype == torch.float32 else "tf32"


def _power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


class TritonOps(Ops):
    """See `Ops`. float32 products are exact float32 (no TF32)."""

    def __init__(self, plan: KernelPlan = H200_PLAN) -> None:
        self.plan = plan

    def roll(self, buffer: torch.Tensor, pool: torch.Tensor, batch: Batch) -> None:
        context, channels = pool.shape[1:]
        block = min(64, triton.next_power_of_2(channels))
        grid = (buffer.shape[0], triton.cdiv(channels, block))
        rows = buffer.shape[1] - context
        padded = triton.next_power_of_2(context)
        roll_kernel[grid](buffer, pool, batch.slots, batch.positions, rows, context, channels, padded, block)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out, channels = torch.empty_like(x), x.shape[-1]
        rms_norm_kernel[(x.numel() // channels,)](x, weight, out, eps, channels, triton.next_power_of_2(channels))
        return out

    def rotate(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: Batch, context: int, heads: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        half = cos.shape[1]
        kv_heads = (qkv.shape[2] // (2 * half) - heads) // 2
        if not _power_of_two(half):
            return super().rotate(qkv, cos, sin, batch, context, heads)
        count, frames = qkv.shape[:2]
        queries = qkv.new_empty(count, frames, heads * 2 * half)
        keys_values = qkv.new_empty(count, context + frames, kv_heads * 4 * half)
        rotate_kernel[(count * frames,)](
            qkv,
            cos,
            sin,
            batch.positions,
            queries,
            keys_values,
            frames,
            CONTEXT=context,
            HEADS=heads,
            KV_HEADS=kv_heads,
            HALF=half,
            HEAD_BLOCK=triton.next_power_of_2(heads + kv_heads),
            VALUE_BLOCK=triton.next_power_of_2(kv_heads * 2 * half),
        )
        return queries, keys_values

    def window_attention(
        self, queries: torch.Tensor, keys_values: torch.Tensor, batch: Batch, heads: int, head_dim: int
    ) -> torch.Tensor:
        if not self.plan.attention or not _power_of_two(head_dim) or head_dim < 16:
            return super().window_attention(queries, keys_values, batch, heads, head_dim)
        count, frames = queries.shape[:2]
        block = 16 if frames <= 16 else 32
        out = torch.empty_like(queries)
        window_attention_kernel[(count * heads, triton.cdiv(frames, block))](
            queries,
            keys_values,
            batch.positions,
            out,
            frames,
            head_dim**-0.5,
            CONTEXT=keys_values.shape[1] - frames,
            HEADS=heads,
            KV_HEADS=keys_values.shape[2] // (2 * head_dim),
            HEAD_DIM=head_dim,
            BLOCK_Q=block,
            BLOCK_KV=max(16, triton.next_power_of_2(keys_values.shape[1])),
            PRECISION=_precision(queries),
        )
        return out

    def silu_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        channels = gate_up.shape[-1] // 2
        out = gate_up.new_empty(*gate_up.shape[:-1], channels)
        block = min(1024, triton.next_power_of_2(channels))
        silu_gate_kernel[(out.numel() // channels, triton.cdiv(channels, block))](gate_up, out, channels, block)
        return out

    def depthwise_norm(
        self,
        buffer: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        norm: torch.Tensor,
        norm_bias: torch.Tensor,
    ) -> torch.Tensor:
        taps, channels = weight.shape
        rows = buffer.shape[1] - taps + 1
        out = buffer.new_empty(buffer.shape[0], rows, channels)
        depthwise_norm_kernel[(buffer.shape[0] * rows,)](
            buffer, weight, bias, norm, norm_bias, out, rows, 1e-6, taps, channels, triton.next_power_of_2(channels)
        )
        return out

    def tap_conv(
        self,
        source: torch.Tensor,
        conv: TapConv,
        *,
        residual: torch.Tensor | None = None,
        after: Snake | None = None,
        channels: int = 0,
        context: int = 0,
        startup_rows: int = 0,
        batch: Batch | None = None,
        keep: bool = False,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        taps, inner, outer = conv.weight.shape
        if inner % 16 or outer < 16:
            return super().tap_conv(
                source,
                conv,
                residual=residual,
                after=after,
                channels=channels,
                context=context,
                startup_rows=startup_rows,
                batch=batch,
                keep=keep,
            )
        count, rows, width = source.shape[0], source.shape[1] - conv.context, channels or outer
        kept = source.new_empty(count, rows * outer // width, width) if keep or after is None else None
        activated = source.new_empty(count, context + rows * outer // width, width) if after is not None else None
        assert batch is not None or not startup_rows
        positions = batch.positions if startup_rows and batch else None
        source_rows = source.shape[1]
        tile = self.plan.gemm_tile(taps, inner, outer, count * rows, heavy=kept is not None)
        block_k = next(size for size in (tile.block_k, 64, 32, 16) if inner % size == 0 and size <= tile.block_k)
        left, right = source, conv.weight
        if tile.tma:
            left, right = _descriptors(source, conv.weight, tile, block_k)
        anything = kept if kept is not None else activated
        total = count * (source_rows if tile.tma else rows)
        tap_gemm_kernel[(triton.cdiv(total, tile.block_m) * triton.cdiv(outer, tile.block_n),)](
            left,
            right,
            conv.bias,
            after.alpha if after else conv.bias,
            after.inverse_beta if after else conv.bias,
            residual if residual is not None else anything,
            anything,
            activated if activated is not None else anything,
            positions if positions is not None else conv.bias,
            count,
            rows,
            source_rows,
            inner,
            outer,
            conv.dilation * inner,
            activated.stride(0) if activated is not None else 0,
            context * width,
            startup_rows * width,
            TAPS=taps,
            RESIDUAL=residual is not None,
            KEEP=kept is not None,
            AFTER=after is not None,
            STARTUP=positions is not None,
            TMA=tile.tma,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=block_k,
            GROUP=8,
            PRECISION=_precision(source),
            CACHE=tile.cache,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return kept, activated

    def waveform(self, buffer: torch.Tensor, conv: TapConv) -> torch.Tensor:
        taps, channels, _ = conv.weight.shape
        count, rows = buffer.shape[0], buffer.shape[1] - conv.context
        out = torch.empty(count, rows, device=buffer.device, dtype=torch.float32)
        per_program = 16
        waveform_kernel[(triton.cdiv(out.numel(), per_program),)](
            buffer,
            conv.weight,
            conv.bias,
            out,
            rows,
            out.numel(),
            taps,
            channels,
            triton.next_power_of_2(channels),
            per_program,
        )
        return out


def _descriptors(source: torch.Tensor, weight: torch.Tensor, tile: GemmTile, block_k: int) -> tuple[Any, Any]:
    from triton.tools.tensor_descriptor import TensorDescriptor

    flat_source, flat_weight = source.view(-1, source.shape[2]), weight.view(-1, weight.shape[2])
    return (
        TensorDescriptor.from_tensor(flat_source, [tile.block_m, block_k]),
        TensorDescriptor.from_tensor(flat_weight, [block_k, tile.block_n]),
    )
