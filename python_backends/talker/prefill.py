"""Computing prompt rows into the caches, several prompts and parts of prompts at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from python_backends.engines_common.graphs import GraphPool, capture
from python_backends.engines_common.transfer import upload
from python_backends.talker.kernels.interface import Kernels, Rotary, Rows
from python_backends.talker.kernels.prefill_layout import TILE_ROWS, PrefillLayout, TileLayout
from python_backends.talker.model.shapes import DecoderShape, TalkerShape
from python_backends.talker.model.slots import SlotBuffers
from python_backends.talker.model.weights import TalkerWeights
from python_backends.talker.prompt import PrefillPart

SMALLEST_CAPTURE = 128


def rotary_3d(positions: torch.Tensor, inv_freq: torch.Tensor, shape: DecoderShape) -> Rotary:
    """Interleaved three-axis angles of `positions` float32 [3, rows]: frequency i takes time, height or width in turn
    while the height and width sections last (transformers' `recomposition_frequencies`)."""
    angle = positions[:, :, None] * inv_freq
    mixed = angle[0].clone()
    for axis in (1, 2):
        chosen = slice(axis, shape.mrope_section[axis] * 3, 3)
        mixed[:, chosen] = angle[axis, :, chosen]
    return Rotary(mixed.cos(), mixed.sin())


@dataclass(frozen=True)
class PrefillInputs:
    """What the layers read: `x` [rows, hidden], angles of all rows, `slots` and `cache_rows` int64 [rows]."""

    x: torch.Tensor
    rotary: Rotary
    slots: torch.Tensor
    cache_rows: torch.Tensor
    layout: PrefillLayout | TileLayout


class Prefill:
    """Fills the caches for prompt rows; what has been captured for a number of rows is replayed."""

    def __init__(self, shape: TalkerShape, weights: TalkerWeights, kernels: Kernels, buffers: SlotBuffers) -> None:
        self._shape, self._weights, self._kernels, self._buffers = shape, weights, kernels, buffers
        self._device = weights.text_table.device
        self._captured: list[CapturedPrefill] = []

    def capture(self, most_rows: int, pool: GraphPool) -> None:
        """Capture graphs for up to `most_rows` rows at once, each for twice as many as the one before. CUDA only."""
        sizes = [most_rows]
        while sizes[0] > SMALLEST_CAPTURE:
            sizes.insert(0, sizes[0] // 2)
        graphs = [CapturedPrefill(self, self._static_inputs(size), pool) for size in reversed(sizes)]
        self._captured = graphs[::-1]

    def _static_inputs(self, rows: int) -> PrefillInputs:
        """Inputs of a graph for `rows` rows, all of them rows that touch the scratch slot alone."""
        backbone, device = self._shape.backbone, self._device
        x = torch.zeros(rows, backbone.hidden, device=device, dtype=self._weights.text_table.dtype)
        angles = torch.zeros(2, rows, backbone.head_dim // 2, device=device)
        slots = torch.full((rows,), self._buffers.count, device=device)
        tiles = torch.zeros(-(-rows // TILE_ROWS) + self._buffers.count, 4, device=device, dtype=torch.int64)
        return PrefillInputs(x, Rotary(*angles), slots, torch.zeros_like(slots), TileLayout(tiles))

    def __call__(self, parts: list[PrefillPart]) -> None:
        """Compute all rows of `parts` into their slots' caches."""
        inputs = self._prepare(parts)
        graph = next((graph for graph in self._captured if graph.rows >= len(inputs.x)), None)
        if graph is None:
            self.run(inputs)
        else:
            graph.replay(inputs)

    def _prepare(self, parts: list[PrefillPart]) -> PrefillInputs:
        spans = [slice(part.start, part.start + part.count) for part in parts]
        positions = np.concatenate([p.prompt.positions[:, s] for p, s in zip(parts, spans, strict=True)], axis=1)
        inv_freq = self._weights.backbone.inv_freq
        rotary = rotary_3d(upload(positions, self._device), inv_freq, self._shape.backbone)
        slots = np.array([part.slot for part in parts])
        counts = np.array([part.count for part in parts])
        layout = PrefillLayout(slots, np.array([span.start for span in spans]), counts, self._device)
        row_slots = upload(np.repeat(slots, counts), self._device)
        cache_rows = upload(np.concatenate([np.arange(span.start, span.stop) for span in spans]), self._device)
        return PrefillInputs(self._inputs(parts), rotary, row_slots, cache_rows, layout)

    def run(self, inputs: PrefillInputs) -> None:
        """All layers. The last one stops at its keys and values: nothing reads its output."""
        decoder, buffers, kernels = self._weights.backbone, self._buffers, self._kernels
        eps, rows, slots = decoder.shape.eps, Rows(inputs.x), inputs.slots
        for index, (layer, following) in enumerate(zip(decoder.layers, decoder.following_norms, strict=True)):
            attention = layer.attention
            k_cache, v_cache = buffers.k_cache[index], buffers.v_cache[index]
            qkv = F.linear(kernels.norm(rows, attention.norm, eps), attention.qkv)
            q = kernels.rotate_store(qkv, attention, inputs.rotary, slots, inputs.cache_rows, k_cache, v_cache, eps)
            if index == len(decoder.layers) - 1:
                return
            mixed = kernels.prefill_attention(q, k_cache, v_cache, inputs.layout)
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


class CapturedPrefill:
    """All layers for a fixed number of rows as a CUDA graph; rows left over touch the scratch slot alone."""

    def __init__(self, prefill: Prefill, static: PrefillInputs, pool: GraphPool) -> None:
        self._static, self.rows = static, len(static.x)
        self._idle_slot = static.slots[:1].clone()
        self._graph, _ = capture(lambda: prefill.run(static), pool)

    def replay(self, inputs: PrefillInputs) -> None:
        static, count = self._static, len(inputs.x)
        tiles = inputs.layout.tiles
        static.x[:count].copy_(inputs.x)
        static.rotary.cos[:count].copy_(inputs.rotary.cos)
        static.rotary.sin[:count].copy_(inputs.rotary.sin)
        static.slots[:count].copy_(inputs.slots)
        static.slots[count:].copy_(self._idle_slot.expand(self.rows - count))
        static.cache_rows[:count].copy_(inputs.cache_rows)
        static.cache_rows[count:].zero_()
        static.layout.tiles[: len(tiles)].copy_(tiles)
        static.layout.tiles[len(tiles) :].zero_()
        self._graph.replay()
