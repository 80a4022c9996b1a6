"""Computing prompt rows into the caches, several prompts and parts of prompts at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from python_backends.talker.kernels.interface import Kernels, Rotary
from python_backends.talker.kernels.torch_kernels import rms_norm
from python_backends.talker.prompt import TalkerPrompt
from python_backends.talker.shapes import DecoderShape, TalkerShape
from python_backends.talker.slots import SlotBuffers
from python_backends.talker.transfer import upload
from python_backends.talker.weights import TalkerWeights


@dataclass(frozen=True)
class PrefillPart:
    """Rows `start` to `start + count` of a prompt, for one slot."""

    slot: int
    prompt: TalkerPrompt
    start: int
    count: int


def rotary_3d(positions: torch.Tensor, inv_freq: torch.Tensor, shape: DecoderShape) -> Rotary:
    """Interleaved three-axis angles of `positions` float32 [3, rows]: frequency i takes time, height or width in turn
    while the height and width sections last (transformers' `recomposition_frequencies`)."""
    angle = positions[:, :, None] * inv_freq
    mixed = angle[0].clone()
    for axis in (1, 2):
        chosen = slice(axis, shape.mrope_section[axis] * 3, 3)
        mixed[:, chosen] = angle[axis, :, chosen]
    return Rotary(mixed.cos(), mixed.sin())


class Prefill:
    """Fills the caches for prompt rows. Shapes follow the prompts, so this part runs outside the graphs."""

    def __init__(self, shape: TalkerShape, weights: TalkerWeights, kernels: Kernels, buffers: SlotBuffers) -> None:
        self._shape, self._weights, self._kernels, self._buffers = shape, weights, kernels, buffers
        self._device = weights.text_table.device

    def __call__(self, parts: list[PrefillPart]) -> None:
        """Compute all rows of `parts`. The last layer stops at its keys and values: nothing reads its output."""
        decoder, buffers, kernels = self._weights.backbone, self._buffers, self._kernels
        eps, x = decoder.shape.eps, self._inputs(parts)
        spans = [slice(part.start, part.start + part.count) for part in parts]
        positions = np.concatenate([p.prompt.positions[:, s] for p, s in zip(parts, spans, strict=True)], axis=1)
        rotary = rotary_3d(upload(positions, self._device), decoder.inv_freq, decoder.shape)
        slots = upload(np.repeat([p.slot for p in parts], [p.count for p in parts]), self._device)
        rows = upload(np.concatenate([np.arange(s.start, s.stop) for s in spans]), self._device)
        layout = AttentionLayout.of(parts, self._device)
        for index, layer in enumerate(decoder.layers):
            attention = layer.attention
            k_cache, v_cache = buffers.k_cache[index], buffers.v_cache[index]
            qkv = F.linear(rms_norm(x, attention.norm, eps), attention.qkv)
            q = kernels.rotate_store(qkv, attention, rotary, slots, rows, k_cache, v_cache, eps)
            if index == len(decoder.layers) - 1:
                return
            mixed = layout.attend(q, k_cache, v_cache)
            x = x + F.linear(mixed, attention.out)
            x = kernels.prefill_moe(x, layer.mlp, eps)

    def _inputs(self, parts: list[PrefillPart]) -> torch.Tensor:
        """Text row or projected media row, plus the codec row, for every row: [rows, hidden]."""
        text, codec, media_at, media = [], [], [], []
        offset = 0
        for part in parts:
            end = part.start + part.count
            text.append(part.prompt.text_ids[part.start : end])
            codec.append(part.prompt.codec_ids[part.start : end])
            first, last = np.searchsorted(part.prompt.media_rows, [part.start, end])
            media_at.append(part.prompt.media_rows[first:last] - part.start + offset)
            media.append(part.prompt.hidden_rows[first:last])
            offset += part.count
        table = self._weights.codec_table
        ids = upload(np.maximum(np.concatenate(text), 0).astype(np.int64), self._device)
        codes = np.concatenate(codec).astype(np.int64)
        codes = upload(np.where(codes < 0, len(table) - 1, codes), self._device)
        x = self._weights.text_table[ids]
        where = np.concatenate(media_at)
        if len(where):
            rows = upload(np.concatenate(media).astype(np.float32), self._device).to(x.dtype)
            x[upload(where, self._device)] = self._weights.hidden_projection(rows)
        return x + table[codes]


@dataclass(frozen=True)
class AttentionLayout:
    """How flat rows map to a padded batch: `at` int64 [parts, longest part] (padding repeats row 0 of the part),
    `back` int64 [rows] into the padded batch, `slots` int64 [parts], `mask` bool [parts, 1, longest part, context]."""

    at: torch.Tensor
    back: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, parts: list[PrefillPart], device: torch.device) -> AttentionLayout:
        counts = np.array([part.count for part in parts])
        starts = np.array([part.start for part in parts])
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])
        step = np.arange(counts.max())
        inside = step[None, :] < counts[:, None]
        at = offsets[:, None] + np.where(inside, step[None, :], 0)
        back = np.flatnonzero(inside.reshape(-1))
        context = int((starts + counts).max())
        own = upload(starts[:, None] + step[None, :], device)
        mask = torch.arange(context, device=device)[None, None, :] <= own[:, :, None]
        slots = upload(np.array([part.slot for part in parts]), device)
        return cls(upload(at, device), upload(back, device), slots, mask[:, None])

    def attend(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
        """Causal attention of the new rows over their slots' caches: [rows, heads * head_dim]."""
        context = self.mask.shape[-1]
        keys = k_cache[:, :context].index_select(0, self.slots).transpose(1, 2)
        values = v_cache[:, :context].index_select(0, self.slots).transpose(1, 2)
        padded = q[self.at].transpose(1, 2)
        groups = q.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(padded, keys, values, attn_mask=self.mask)
        return out.transpose(1, 2).flatten(0, 1)[self.back].flatten(1)
