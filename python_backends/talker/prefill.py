"""Computing prompt rows into the caches, several prompts and parts of prompts at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from python_backends.talker.kernels.interface import Kernels, Rotary, Rows
from python_backends.talker.kernels.prefill_layout import PrefillLayout
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
        eps, rows = decoder.shape.eps, Rows(self._inputs(parts))
        spans = [slice(part.start, part.start + part.count) for part in parts]
        positions = np.concatenate([p.prompt.positions[:, s] for p, s in zip(parts, spans, strict=True)], axis=1)
        rotary = rotary_3d(upload(positions, self._device), decoder.inv_freq, decoder.shape)
        slots, starts, counts = (
            np.array(values) for values in zip(*((p.slot, p.start, p.count) for p in parts), strict=True)
        )
        layout = PrefillLayout(slots, starts, counts, self._device)
        row_slots = upload(np.repeat(slots, counts), self._device)
        cache_rows = upload(np.concatenate([np.arange(s.start, s.stop) for s in spans]), self._device)
        for index, (layer, following) in enumerate(zip(decoder.layers, decoder.following_norms, strict=True)):
            attention = layer.attention
            k_cache, v_cache = buffers.k_cache[index], buffers.v_cache[index]
            qkv = F.linear(kernels.norm(rows, attention.norm, eps), attention.qkv)
            q = kernels.rotate_store(qkv, attention, rotary, row_slots, cache_rows, k_cache, v_cache, eps)
            if index == len(decoder.layers) - 1:
                return
            mixed = kernels.prefill_attention(q, k_cache, v_cache, layout)
            x = torch.addmm(rows.x, mixed, attention.out.t())
            rows = kernels.prefill_moe(x, layer.mlp, following, eps)

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
