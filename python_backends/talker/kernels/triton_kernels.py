"""The step on Triton kernels, with block sizes chosen by batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from python_backends.talker.kernels import (
    triton_attention,
    triton_linear,
    triton_prefill,
    triton_rows,
    triton_sampling,
)
from python_backends.talker.kernels.grouped_moe import can_group, grouped_moe
from python_backends.talker.kernels.interface import Rows
from python_backends.talker.kernels.torch_sampling import suppressed_codes
from python_backends.talker.kernels.triton_linear import Tile, VectorTile
from python_backends.talker.kernels.triton_moe import MoeTiles, expert_parts, moe_tiles
from python_backends.talker.kernels.triton_moe_few import FewTiles, moe_few
from python_backends.talker.kernels.triton_routing import select
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.shapes import TalkerShape
from python_backends.talker.model.weights import MlpWeights, MoeWeights, TalkerWeights

FEW_ROWS = 2
SPLITS_BY_ROWS = ((8, 16), (32, 8), (1 << 30, 4))
TILES = {
    "qkv": Tile(0, 32, 128, 4, 4),
    "out": Tile(0, 32, 128, 4, 4, 4),
    "gate_up": Tile(0, 32, 128, 4, 3),
    "down": Tile(0, 32, 128, 4, 4, 4),
    "router": Tile(0, 16, 128, 4, 3, 4),
}
TALL_TILES = {
    "qkv": Tile(0, 32, 64, 8, 4),
    "out": Tile(0, 32, 64, 8, 4, 4),
    "gate_up": Tile(0, 32, 64, 8, 4),
    "down": Tile(0, 32, 64, 8, 4, 4),
    "router": Tile(0, 16, 128, 8, 3, 4),
}
VECTOR_TILES = {
    "qkv": VectorTile(16, 4),
    "out": VectorTile(8, 4),
    "gate_up": VectorTile(16, 8),
    "down": VectorTile(8, 8),
    "router": VectorTile(4, 4),
}


def row_block(rows: int) -> int:
    """Rows of one output tile: the batch where it fits, so that weights stream through once."""
    return next((size for size in (16, 32, 64) if rows <= size), 128)


@dataclass(frozen=True)
class KernelChoices:
    """Launch choices by kind of layer where they differ from the defaults; a tile of 0 rows takes them by batch.
    `few_rows`: up to so many rows run on vector kernels."""

    tiles: dict[str, Tile] = field(default_factory=dict)
    vectors: dict[str, VectorTile] = field(default_factory=dict)
    moe: MoeTiles | None = None
    few: FewTiles = FewTiles()
    splits: int | None = None
    few_rows: int = FEW_ROWS


class TritonKernels:
    """See `Kernels`. Needs contiguous tensors; the sums of a row never depend on its batch mates' values."""

    name = "triton"
    rotate_store = staticmethod(triton_attention.rotate_store)
    predictor_attention = staticmethod(triton_attention.predictor_attention)
    prefill_attention = staticmethod(triton_prefill.prefill_attention)

    def __init__(self, weights: TalkerWeights, shape: TalkerShape, choices: KernelChoices | None = None) -> None:
        device = weights.text_table.device
        self._weights, self._eos = weights, shape.ids.codec_eos
        self._choices = choices or KernelChoices()
        self._suppressed = suppressed_codes(shape, device)
        self._offsets = [int(offset) for offset in weights.codec_offsets]
        self._counts = torch.zeros(shape.backbone.experts, device=device, dtype=torch.int32)

    def tile(self, kind: str, rows: int) -> Tile:
        """Block sizes for one kind of product: "qkv" (and the heads), "out", "gate_up", "down" or "router"."""
        block = row_block(rows)
        tile = self._choices.tiles.get(kind) or (TALL_TILES if block > 64 else TILES)[kind]
        return tile if tile.m else replace(tile, m=block)

    def _few(self, rows: int) -> bool:
        return rows <= self._choices.few_rows

    def _vector(self, kind: str) -> VectorTile:
        return self._choices.vectors.get(kind, VECTOR_TILES[kind])

    def embed(self, text: torch.Tensor, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        weights = self._weights
        return triton_rows.embed(text, slots, codes, weights.codec_offsets, weights.codec_table, weights.text_table)

    def norm(self, rows: Rows, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return triton_rows.rms_norm(rows.x, weight, eps) if rows.normed is None else rows.normed

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self._few(len(x)):
            return triton_linear.vector_linear(x, weight, self._vector("qkv"))
        return triton_linear.linear(x, weight, self.tile("qkv", len(x)))

    def norm_linear(self, rows: Rows, norm: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if self._few(len(rows.x)):
            return triton_linear.vector_linear(rows.x, weight, self._vector("qkv"), norm=norm, eps=eps)
        return self.linear(self.norm(rows, norm, eps), weight)

    def mlp_block(
        self, rows: Rows, mixed: torch.Tensor, out: torch.Tensor, mlp: MlpWeights, following: torch.Tensor, eps: float
    ) -> Rows:
        count = len(mixed)
        if self._few(count):
            vector = triton_linear.vector_linear
            x = vector(mixed, out, self._vector("out"), residual=rows.x)
            middle = vector(x, mlp.gate_up, self._vector("gate_up"), norm=mlp.norm, eps=eps, gated=True)
            return Rows(vector(middle, mlp.down, self._vector("down"), residual=x))
        parts = triton_linear.linear_parts(mixed, out, self.tile("out", count))
        x, normed = triton_rows.sum_norm(parts, rows.x, mlp.norm, eps)
        middle = triton_linear.linear(normed, mlp.gate_up, self.tile("gate_up", count), gated=True)
        parts = triton_linear.linear_parts(middle, mlp.down, self.tile("down", count))
        return Rows(*triton_rows.sum_norm(parts, x, following, eps))

    def moe_block(
        self, rows: Rows, mixed: torch.Tensor, out: torch.Tensor, moe: MoeWeights, following: torch.Tensor, eps: float
    ) -> Rows:
        count = len(mixed)
        if self._few(count):
            vector = triton_linear.vector_linear
            x = vector(mixed, out, self._vector("out"), residual=rows.x)
            tile = self._vector("router")
            logits = vector(x, moe.routing, tile, norm=moe.norm, eps=eps, dtype=torch.float32)
            return Rows(moe_few(x, moe, select(logits[None], moe, None), eps, self._choices.few))
        parts = triton_linear.linear_parts(mixed, out, self.tile("out", count))
        return self._experts(*triton_rows.sum_norm(parts, rows.x, moe.norm, eps), moe, following, eps)

    def _experts(
        self, x: torch.Tensor, normed: torch.Tensor, moe: MoeWeights, following: torch.Tensor, eps: float
    ) -> Rows:
        logits = triton_linear.linear_parts(normed, moe.routing, self.tile("router", len(x)))
        routing = select(logits, moe, self._counts)
        parts = expert_parts(normed, moe, routing, self._choices.moe or moe_tiles(x.dtype))
        return Rows(*triton_rows.sum_norm(parts, x, following, eps, row_major=True, clear=self._counts))

    def prefill_moe(self, x: torch.Tensor, moe: MoeWeights, following: torch.Tensor, eps: float) -> Rows:
        if can_group(x):
            return grouped_moe(x, moe, following, eps, self.tile("router", len(x)))
        return self._experts(x, triton_rows.rms_norm(x, moe.norm, eps), moe, following, eps)

    def decode_attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        lengths: torch.Tensor,
        longest: int,
    ) -> torch.Tensor:
        splits = self._choices.splits or next(splits for rows, splits in SPLITS_BY_ROWS if len(q) <= rows)
        return triton_attention.decode_attention(q, k_cache, v_cache, slots, lengths, splits)

    def draw_first(
        self, logits: torch.Tensor, settings: RowSettings, seen: torch.Tensor, slots: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return triton_sampling.draw(
            logits,
            settings,
            0,
            self._weights.codec_table,
            0,
            eos=self._eos,
            seen=seen,
            slots=slots,
            suppressed=self._suppressed,
        )

    def draw(self, logits: torch.Tensor, settings: RowSettings, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        return triton_sampling.draw(logits, settings, group, self._weights.codec_table, self._offsets[group])
