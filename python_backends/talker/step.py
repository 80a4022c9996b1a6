"""One decode step: last codes and a text id in, the next frame out, all on the device."""

from __future__ import annotations

import torch

from python_backends.talker.kernels.interface import Kernels, Rotary, Rows
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.shapes import TalkerShape
from python_backends.talker.model.slots import SlotBuffers
from python_backends.talker.model.weights import TalkerWeights

CONTROL_COLUMNS = ("slot", "text_id", "cache_row", "frame")


def rotary_of(positions: torch.Tensor, inv_freq: torch.Tensor) -> Rotary:
    """Angles of plain positions float32 [rows]."""
    angle = positions[:, None] * inv_freq[None, :]
    return Rotary(angle.cos(), angle.sin())


class TalkerStep:
    """Runs the step for any batch size; holds no state but the buffers it is given."""

    def __init__(self, shape: TalkerShape, weights: TalkerWeights, kernels: Kernels, buffers: SlotBuffers) -> None:
        self._shape, self._weights, self.kernels, self._buffers = shape, weights, kernels, buffers
        device = weights.text_table.device
        positions = torch.arange(shape.groups + 1, dtype=torch.float32, device=device)
        self._predictor_rotary = rotary_of(positions, weights.predictor.inv_freq)

    def __call__(self, control: torch.Tensor, longest: int, widest: int = 0) -> torch.Tensor:
        """Compute frame codes int32 [rows, groups] and store them in the slots.

        `control` int64 [4, rows], see CONTROL_COLUMNS: the row of cache that this step fills and the number of frames
        drawn before it. `longest`: no row's context is longer, this step's row included. `widest`: no row has a
        larger top-k, 0 when unknown. A first code equal to the end token means that the frame does not count.
        """
        slots, text, cache_row, frame = control.unbind(0)
        buffers, kernels = self._buffers, self.kernels
        floats, ints = buffers.floats.index_select(0, slots), buffers.ints.index_select(0, slots)
        settings = RowSettings(floats, ints, frame, widest)
        x = kernels.embed(text, slots, buffers.codes)
        hidden = self.backbone(x, slots, cache_row, settings.float_of("position_delta"), longest)
        logits = kernels.linear(hidden, self._weights.codec_head)
        first = kernels.draw_first(logits, settings, buffers.seen, slots)
        codes = self.predict(hidden, first, settings)
        buffers.codes.index_copy_(0, slots, codes)
        return codes

    def backbone(
        self, x: torch.Tensor, slots: torch.Tensor, cache_row: torch.Tensor, delta: torch.Tensor, longest: int
    ) -> torch.Tensor:
        """Run the backbone over input rows [rows, hidden]; `delta` float32 [rows] turns cache rows into positions."""
        decoder, buffers, kernels = self._weights.backbone, self._buffers, self.kernels
        eps, lengths = decoder.shape.eps, cache_row + 1
        rotary = rotary_of(cache_row + delta, decoder.inv_freq)
        rows = Rows(x)
        for index, (layer, following) in enumerate(zip(decoder.layers, decoder.following_norms, strict=True)):
            attention = layer.attention
            k_cache, v_cache = buffers.k_cache[index], buffers.v_cache[index]
            qkv = kernels.norm_linear(rows, attention.norm, attention.qkv, eps)
            q = kernels.rotate_store(qkv, attention, rotary, slots, cache_row, k_cache, v_cache, eps)
            mixed = kernels.decode_attention(q, k_cache, v_cache, slots, lengths, longest)
            rows = kernels.moe_block(rows, mixed, attention.out, layer.mlp, following, eps)
        return kernels.norm(rows, decoder.norm, eps)

    def predict(
        self, hidden: torch.Tensor, first: tuple[torch.Tensor, torch.Tensor], settings: RowSettings
    ) -> torch.Tensor:
        """Draw groups 1 to the last: positions 0 and 1 hold the backbone's hidden row and the first code."""
        weights, kernels, decoder = self._weights, self.kernels, self._weights.predictor
        shape, batch = decoder.shape, len(hidden)
        size = (shape.layers, 2, batch, self._shape.groups + 1, shape.kv_heads, shape.head_dim)
        buffers = hidden.new_empty(size)
        codes = [first[0]]
        x = torch.cat([hidden, first[1]])
        for group in range(1, self._shape.groups):
            position = 0 if group == 1 else group
            rows = self._predictor_layers(Rows(x), buffers, position).last(batch)
            logits = kernels.norm_linear(rows, decoder.norm, weights.predictor_heads[group - 1], shape.eps)
            code, x = kernels.draw(logits, settings, group)
            codes.append(code)
        return torch.stack(codes, dim=1).int()

    def _predictor_layers(self, rows: Rows, buffers: torch.Tensor, position: int) -> Rows:
        decoder = self._weights.predictor
        kernels, eps = self.kernels, decoder.shape.eps
        for layer, following, (k_buffer, v_buffer) in zip(
            decoder.layers, decoder.following_norms, buffers, strict=True
        ):
            attention = layer.attention
            qkv = kernels.norm_linear(rows, attention.norm, attention.qkv, eps)
            mixed = kernels.predictor_attention(
                qkv, attention, self._predictor_rotary, k_buffer, v_buffer, position, eps
            )
            rows = kernels.mlp_block(rows, mixed, attention.out, layer.mlp, following, eps)
        return rows
