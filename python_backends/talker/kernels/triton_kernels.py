"""The step on Triton kernels, with block sizes chosen by batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F

from python_backends.talker.kernels import triton_attention, triton_linear, triton_moe, triton_sampling
from python_backends.talker.kernels.grouped_moe import grouped_moe
from python_backends.talker.kernels.interface import Rotary
from python_backends.talker.kernels.triton_linear import SplitScratch, Tile
from python_backends.talker.kernels.triton_moe import MoeTiles
from python_backends.talker.sampler import RowSettings, suppressed_codes
from python_backends.talker.shapes import TalkerShape
from python_backends.talker.weights import AttentionWeights, MlpWeights, MoeWeights, TalkerWeights

PER_ENTRY_ROWS = 4
SPLITS_BY_ROWS = ((8, 16), (32, 8), (1 << 30, 4))


def row_block(rows: int) -> int:
    """Rows of one output tile: the batch where it fits, so that weights stream through once."""
    return next((size for size in (16, 32, 64) if rows <= size), 64)


@dataclass(frozen=True)
class KernelChoices:
    """Launch choices by kind of layer; `None`, and a tile of 0 rows, pick by batch. `library_linear`: cuBLAS for plain
    products."""

    tiles: dict[str, Tile] = field(default_factory=dict)
    moe: MoeTiles | None = None
    splits: int | None = None
    library_linear: bool = False


class TritonKernels:
    """See `Kernels`. Needs contiguous tensors; the sums of a row never depend on its batch mates' values."""

    name = "triton"

    def __init__(self, weights: TalkerWeights, shape: TalkerShape, choices: KernelChoices | None = None) -> None:
        device = weights.text_table.device
        self._weights, self._eos = weights, shape.ids.codec_eos
        self._choices = choices or KernelChoices()
        self._suppressed = suppressed_codes(shape, device)
        self._scratch = SplitScratch(device)
        self._offsets = [int(offset) for offset in weights.codec_offsets]

    def tile(self, kind: str, rows: int) -> Tile:
        """Block sizes for one kind of product: "qkv", "out", "gate_up", "down" or "head"."""
        chosen = self._choices.tiles.get(kind)
        if chosen is not None:
            return chosen if chosen.m else replace(chosen, m=row_block(rows))
        narrow = kind in ("out", "down")
        return Tile(row_block(rows), 16 if narrow else 32, 128, 4, 4)

    def embed(self, text: torch.Tensor, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        weights = self._weights
        return triton_linear.embed(text, slots, codes, weights.codec_offsets, weights.codec_table, weights.text_table)

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return triton_linear.rms_norm(x, weight, eps)

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self._choices.library_linear:
            return F.linear(x, weight)
        return triton_linear.linear(x, weight, self.tile("head", len(x)), self._scratch)

    def norm_linear(self, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if self._choices.library_linear:
            return F.linear(triton_linear.rms_norm(x, norm, eps), weight)
        return triton_linear.linear(x, weight, self.tile("qkv", len(x)), self._scratch, norm=norm, eps=eps)

    def linear_residual(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if self._choices.library_linear:
            return torch.addmm(residual, x, weight.t())
        return triton_linear.linear(x, weight, self.tile("out", len(x)), self._scratch, residual=residual)

    def mlp(self, x: torch.Tensor, weights: MlpWeights, eps: float) -> torch.Tensor:
        tile = self.tile("gate_up", len(x))
        middle = triton_linear.linear(x, weights.gate_up, tile, self._scratch, norm=weights.norm, eps=eps, gated=True)
        if self._choices.library_linear:
            return torch.addmm(x, middle, weights.down.t())
        return triton_linear.linear(middle, weights.down, self.tile("down", len(x)), self._scratch, residual=x)

    def moe(self, x: torch.Tensor, weights: MoeWeights, eps: float) -> torch.Tensor:
        tiles = self._choices.moe or MoeTiles(per_entry=len(x) <= PER_ENTRY_ROWS)
        return triton_moe.moe(x, weights, eps, tiles)

    def prefill_moe(self, x: torch.Tensor, weights: MoeWeights, eps: float) -> torch.Tensor:
        return grouped_moe(x, weights, eps)

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
        return triton_attention.rotate_store(qkv, weights, rotary, slots, cache_rows, k_cache, v_cache, eps)

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
        return triton_attention.predictor_attention(qkv, weights, rotary, k_buffer, v_buffer, first, eps)

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
