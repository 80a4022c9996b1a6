"""The operations Code2Wav is made of, in PyTorch. They run on any device and are the reference for the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from python_backends.code2wav.parameters import ResidualUnit, Snake, TapConv


@dataclass(frozen=True)
class Batch:
    """Which streams a step works on. `slots`, `positions`: [batch] int64; position = frames decoded before."""

    slots: torch.Tensor
    positions: torch.Tensor


class Ops:
    """Tensors are channels last, [batch, rows, channels]. A *buffer* [batch, context + rows, channels] has room for
    the rows before the chunk; `roll` fills them. Products accumulate in float32; what follows a product (bias,
    residual sum, SnakeBeta), norms, softmax and rotary embedding are computed in float32 and stored in the model's
    dtype."""

    def embed(self, table: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Sum of the rows of `table` [quantizers · codebook, hidden] that `codes` [batch, frames, quantizers] name."""
        offsets = torch.arange(codes.shape[-1], device=codes.device) * (table.shape[0] // codes.shape[-1])
        return table[codes + offsets].sum(2, dtype=torch.float32).to(table.dtype)

    def buffer(self, rows: torch.Tensor, context: int) -> torch.Tensor:
        """A buffer with `rows` copied behind room for `context` rows."""
        batch, count, channels = rows.shape
        buffer = rows.new_empty(batch, context + count, channels)
        buffer[:, context:] = rows
        return buffer

    def roll(self, buffer: torch.Tensor, pool: torch.Tensor, batch: Batch) -> None:
        """Put each stream's last rows from `pool` before the chunk, and the buffer's last rows back into `pool`.

        A stream at position 0 gets zeros, whatever its slot holds.
        """
        context = pool.shape[1]
        fresh = (batch.positions == 0)[:, None, None]
        buffer[:, :context] = torch.where(fresh, 0, pool[batch.slots])
        pool[batch.slots] = buffer[:, -context:]

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)

    def rotate(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: Batch, context: int, heads: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotary embedding. `qkv`: [batch, frames, (heads + 2 · kv heads) · d]; `cos`, `sin`: [positions, d / 2].

        Returns queries [batch, frames, heads · d] and a buffer of keys then values, `context` rows free before them.
        """
        frames, half = qkv.shape[1], cos.shape[1]
        positions = batch.positions[:, None] + torch.arange(frames, device=qkv.device)
        c, s = cos[positions][:, :, None], sin[positions][:, :, None]
        parts = qkv.unflatten(-1, (-1, 2 * half))
        kv_heads = (parts.shape[2] - heads) // 2
        first, second = parts[:, :, : heads + kv_heads].float().split(half, -1)
        rotated = torch.cat([first * c - second * s, second * c + first * s], -1).to(qkv.dtype)
        keys_values = torch.cat([rotated[:, :, heads:], parts[:, :, heads + kv_heads :]], 2).flatten(2)
        return rotated[:, :, :heads].flatten(2), self.buffer(keys_values, context)

    def window_attention(
        self, queries: torch.Tensor, keys_values: torch.Tensor, batch: Batch, heads: int, head_dim: int
    ) -> torch.Tensor:
        """Each frame attends to itself and as many frames before it as `keys_values` holds before the chunk.

        Every frame has products of its own, all of one shape: how a stream is cut changes nothing in them.
        """
        frames, width = queries.shape[1], keys_values.shape[1] - queries.shape[1] + 1
        q = queries.unflatten(-1, (heads, 1, head_dim))
        k, v = keys_values.unfold(1, width, 1).unflatten(2, (2, -1, head_dim)).unbind(2)
        k, v = (rows.repeat_interleave(heads // rows.shape[2], 2) for rows in (k, v))
        positions = batch.positions[:, None] + torch.arange(frames, device=queries.device)
        seen = torch.arange(width, device=queries.device) + positions[..., None] >= width - 1
        scores = (q @ k).float().squeeze(-2) * head_dim**-0.5
        weights = scores.masked_fill(~seen[:, :, None], -torch.inf).softmax(-1).to(queries.dtype)
        return (v @ weights[..., None]).view(queries.shape)

    def linear_add(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x @ weight; `residual` may hold a bias already."""
        return torch.addmm(residual.flatten(0, 1), x.flatten(0, 1), weight).view(residual.shape)

    def silu_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, -1)
        return (functional.silu(gate) * up).to(gate_up.dtype)

    def depthwise_norm(
        self,
        buffer: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        norm: torch.Tensor,
        norm_bias: torch.Tensor,
    ) -> torch.Tensor:
        """Depthwise convolution, `weight` [taps, channels], then layer norm (epsilon 1e-6)."""
        taps = weight.shape[0]
        rows = buffer.shape[1] - taps + 1
        y = sum(buffer[:, tap : tap + rows].float() * weight[tap].float() for tap in range(taps)) + bias
        return functional.layer_norm(y, y.shape[-1:], norm, norm_bias, 1e-6).to(buffer.dtype)

    def gelu_linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.gelu(torch.addmm(bias, x.flatten(0, 1), weight)).view(*x.shape[:2], -1)

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
        """`conv` over the buffer `source`, plus `residual`, then `after`.

        Returns the sum before `after` if `keep` or without `after`, and a buffer of activations with `context` rows
        free before them (without `after`: None). Both have `channels` columns (default: the convolution's). The first
        `startup_rows` activations of a stream at position 0 are zeros: the full forward has no such rows.
        """
        y = self._products(source, conv).float() + conv.bias
        width = channels or y.shape[-1]
        if residual is not None:
            y = y + residual.view(y.shape).float()
        kept = y.to(source.dtype).view(y.shape[0], -1, width) if keep or after is None else None
        if after is None:
            return kept, None
        y = (y + after.inverse_beta * torch.sin(after.alpha * y).pow(2)).view(y.shape[0], -1, width)
        if startup_rows:
            assert batch is not None
            early = torch.arange(y.shape[1], device=y.device) < startup_rows
            y = torch.where((early & (batch.positions == 0)[:, None])[..., None], 0, y)
        return kept, self.buffer(y.to(source.dtype), context)

    def _products(self, source: torch.Tensor, conv: TapConv) -> torch.Tensor:
        rows = source.shape[1] - conv.context
        y = source[:, :rows] @ conv.weight[0]
        for tap in range(1, conv.weight.shape[0]):
            y = y + source[:, tap * conv.dilation : tap * conv.dilation + rows] @ conv.weight[tap]
        return y

    def residual_unit(
        self,
        source: torch.Tensor,
        residual: torch.Tensor,
        unit: ResidualUnit,
        *,
        context: int,
        startup_rows: int,
        batch: Batch,
        keep: bool,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """`tap_conv`'s results for one residual unit; `source` is the activated input, `residual` the input."""
        _, hidden = self.tap_conv(source, unit.conv1, after=unit.middle)
        return self.tap_conv(
            hidden,
            unit.conv2,
            residual=residual,
            after=unit.after,
            context=context,
            startup_rows=startup_rows,
            batch=batch,
            keep=keep,
        )

    def waveform(self, buffer: torch.Tensor, conv: TapConv) -> torch.Tensor:
        """The last convolution, to one channel: float32 samples [batch, rows] in [-1, 1]."""
        rows = buffer.shape[1] - conv.context
        weight = conv.weight[:, :, 0].float()
        y = sum((buffer[:, tap : tap + rows].float() * weight[tap]).sum(-1) for tap in range(weight.shape[0]))
        return (y + conv.bias).clamp(-1, 1)
