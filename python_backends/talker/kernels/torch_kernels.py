"""Plain torch: the reference for every other set of kernels, and the CPU's own."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from python_backends.talker.kernels.interface import Rotary, Rows
from python_backends.talker.kernels.prefill_layout import PrefillLayout, TileLayout
from python_backends.talker.kernels.torch_sampling import penalise, sample, suppressed_codes
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.shapes import TalkerShape
from python_backends.talker.model.weights import AttentionWeights, MlpWeights, MoeWeights, TalkerWeights

ATTENTION_BLOCK = 256


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last axis."""
    return F.rms_norm(x, weight.shape, weight, eps)


def rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotate [rows, heads, head_dim], halves paired, with the angles of each row."""
    cos, sin = rotary.cos[:, None, :].to(x.dtype), rotary.sin[:, None, :].to(x.dtype)
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def split_heads(qkv: torch.Tensor, weights: AttentionWeights, eps: float) -> tuple[torch.Tensor, ...]:
    """Give normalised queries and keys, and values, each [rows, heads, head_dim]."""
    dim = weights.q_norm.shape[0]
    heads = weights.out.shape[1] // dim
    kv_heads = (qkv.shape[1] // dim - heads) // 2
    q, k, v = qkv.view(len(qkv), -1, dim).split([heads, kv_heads, kv_heads], dim=1)
    return rms_norm(q, weights.q_norm, eps), rms_norm(k, weights.k_norm, eps), v


def route(x: torch.Tensor, weights: MoeWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """Expert ids int64 and weights float32, both [rows, top_k + shared], for normalised rows."""
    probability = F.linear(x, weights.router).float().softmax(dim=-1)
    weight, expert = probability.topk(weights.top_k, dim=-1)
    if weights.normalise:
        weight = weight / weight.sum(-1, keepdim=True)
    shared_ids = torch.arange(weights.shared, device=x.device) + len(weights.router)
    gate = F.linear(x, weights.shared_gate).float().sigmoid().expand(-1, weights.shared)
    return torch.cat([expert, shared_ids.expand(len(x), -1)], 1), torch.cat([weight, gate], 1)


class TorchKernels:
    """See `Kernels`. Shapes never depend on data; attention reads the cache in blocks of a fixed size, so the
    result does not depend on how much longer a batch mate's context is."""

    name = "torch"

    def __init__(self, weights: TalkerWeights, shape: TalkerShape) -> None:
        self._weights, self._eos = weights, shape.ids.codec_eos
        self._suppressed = suppressed_codes(shape, weights.text_table.device)

    def embed(self, text: torch.Tensor, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        table, codes = self._weights.codec_table, codes.index_select(0, slots).long()
        index = torch.where(codes < 0, len(table) - 1, codes + self._weights.codec_offsets)
        codec = table[index]
        return codec.sum(dim=1) + self._weights.text_table[text]

    def norm(self, rows: Rows, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(rows.x, weight, eps)

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    def norm_linear(self, rows: Rows, norm: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.linear(rms_norm(rows.x, norm, eps), weight)

    def mlp_block(
        self, rows: Rows, mixed: torch.Tensor, out: torch.Tensor, mlp: MlpWeights, following: torch.Tensor, eps: float
    ) -> Rows:
        x = rows.x + F.linear(mixed, out)
        gate, up = F.linear(rms_norm(x, mlp.norm, eps), mlp.gate_up).chunk(2, dim=-1)
        return Rows(x + F.linear(F.silu(gate) * up, mlp.down))

    def moe_block(
        self, rows: Rows, mixed: torch.Tensor, out: torch.Tensor, moe: MoeWeights, following: torch.Tensor, eps: float
    ) -> Rows:
        return self.prefill_moe(rows.x + F.linear(mixed, out), moe, following, eps)

    def prefill_attention(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, layout: PrefillLayout | TileLayout
    ) -> torch.Tensor:
        assert isinstance(layout, PrefillLayout), "only kernels that a graph can hold read tiles alone"
        padded = layout.padded
        context = padded.mask.shape[-1]
        keys = k_cache[:, :context].index_select(0, padded.slots).transpose(1, 2)
        values = v_cache[:, :context].index_select(0, padded.slots).transpose(1, 2)
        groups = q.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q[padded.at].transpose(1, 2), keys, values, attn_mask=padded.mask)
        return out.transpose(1, 2).flatten(0, 1)[padded.back].flatten(1)

    def prefill_moe(self, x: torch.Tensor, moe: MoeWeights, following: torch.Tensor, eps: float) -> Rows:
        normed = rms_norm(x, moe.norm, eps)
        expert, weight = route(normed, moe)
        experts, double, hidden = moe.gate_up.shape
        gate, up = F.linear(normed, moe.gate_up.view(-1, hidden)).view(len(x), experts, double).chunk(2, dim=-1)
        dense = weight.new_zeros(len(x), experts).scatter_(1, expert, weight).to(x.dtype)
        middle = F.silu(gate) * up * dense[:, :, None]
        return Rows(x + F.linear(middle.flatten(1), moe.down.transpose(0, 1).reshape(hidden, -1)))

    def rotate_store(
        self,
        qkv: torch.Tensor,
        weights: AttentionWeights,
        rotary: Rotary,
        slots: torch.Tensor,
        cache_rows: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        q, k, v = split_heads(qkv, weights, eps)
        k_cache.index_put_((slots, cache_rows), rotate(k, rotary))
        v_cache.index_put_((slots, cache_rows), v)
        return rotate(q, rotary)

    def decode_attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        lengths: torch.Tensor,
        longest: int,
    ) -> torch.Tensor:
        rows, heads, dim = q.shape
        kv_heads = k_cache.shape[2]
        grouped = q.view(rows, kv_heads, heads // kv_heads, dim).float() * dim**-0.5
        top = grouped.new_full((*grouped.shape[:3], 1), -1e30)
        total = torch.zeros_like(top)
        out = torch.zeros_like(grouped)
        for start in range(0, longest, ATTENTION_BLOCK):
            columns = torch.arange(start, min(start + ATTENTION_BLOCK, k_cache.shape[1]), device=q.device)
            keys = k_cache[slots[:, None], columns[None, :]].permute(0, 2, 3, 1).float()
            values = v_cache[slots[:, None], columns[None, :]].transpose(1, 2).float()
            score = grouped @ keys
            score = score.masked_fill((columns[None, :] >= lengths[:, None])[:, None, None, :], -1e30)
            new_top = torch.maximum(top, score.amax(-1, keepdim=True))
            decay = torch.exp(top - new_top)
            part = torch.exp(score - new_top).masked_fill(score <= -1e30, 0.0)
            total = total * decay + part.sum(-1, keepdim=True)
            out = out * decay + part @ values
            top = new_top
        return (out / total).reshape(rows, heads * dim).to(q.dtype)

    def predictor_attention(
        self,
        qkv: torch.Tensor,
        weights: AttentionWeights,
        rotary: Rotary,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        first: int,
        eps: float,
    ) -> torch.Tensor:
        batch, _, kv_heads, dim = k_buffer.shape
        count = len(qkv) // batch
        end = first + count
        q, k, v = split_heads(qkv, weights, eps)
        angles = Rotary(
            rotary.cos[first:end].repeat_interleave(batch, 0), rotary.sin[first:end].repeat_interleave(batch, 0)
        )
        q, k = rotate(q, angles), rotate(k, angles)
        k_buffer[:, first:end] = k.view(count, batch, kv_heads, dim).transpose(0, 1)
        v_buffer[:, first:end] = v.view(count, batch, kv_heads, dim).transpose(0, 1)
        queries = q.view(count, batch, -1, dim).permute(1, 2, 0, 3)
        keys, values = k_buffer[:, :end].transpose(1, 2), v_buffer[:, :end].transpose(1, 2)
        # Several new positions come only at the start, where the square causal mask is the right one.
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=count > 1, enable_gqa=True)
        return out.permute(2, 0, 1, 3).reshape(len(qkv), -1)

    def draw_first(
        self, logits: torch.Tensor, settings: RowSettings, seen: torch.Tensor, slots: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        is_eos = torch.arange(logits.shape[1], device=logits.device) == self._eos
        banned = settings.int_of("ignore_eos").bool()[:, None] & is_eos[None, :]
        logits = penalise(logits.float(), seen[slots], settings.float_of("penalty"), self._suppressed, banned)
        code = sample(logits, settings.draw(0))
        seen.index_put_((slots, code), seen.new_ones(()))
        return code, self._weights.codec_table[code]

    def draw(self, logits: torch.Tensor, settings: RowSettings, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        code = sample(logits.float(), settings.draw(group))
        return code, self._weights.codec_table[code + self._weights.codec_offsets[group]]
