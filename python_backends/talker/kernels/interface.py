"""What a set of kernels offers to the step. All methods run without host synchronisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from python_backends.talker.kernels.prefill_layout import PrefillLayout, TileLayout
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.weights import AttentionWeights, MlpWeights, MoeWeights


@dataclass(frozen=True)
class Rotary:
    """Cosine and sine, float32 [rows, head_dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True)
class Rows:
    """The residual stream `x` [rows, hidden] and, where a kernel has made it on the way, its RMSNorm with the weight
    that comes next."""

    x: torch.Tensor
    normed: torch.Tensor | None = None

    def last(self, count: int) -> Rows:
        return Rows(self.x[-count:], None if self.normed is None else self.normed[-count:])


class Kernels(Protocol):
    """Rows are [rows, hidden] in the model's dtype; `slots`, `cache_rows` are int64 [rows]."""

    name: str

    def embed(self, text: torch.Tensor, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Sum of the text rows `text` int64 [rows] and the codec rows of `codes` int32 [slots, groups] at each row's
        slot, -1 for none."""

    def norm(self, rows: Rows, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMSNorm."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x @ weight^T."""

    def norm_linear(self, rows: Rows, norm: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMSNorm, then x @ weight^T."""

    def mlp_block(
        self, rows: Rows, mixed: torch.Tensor, out: torch.Tensor, mlp: MlpWeights, following: torch.Tensor, eps: float
    ) -> Rows:
        """y = x + mixed @ out^T, then y + down(silu(gate(norm(y))) * up(norm(y))); `mixed` is what attention gave and
        `following` the weight of the norm after the block."""

    def moe_block(
        self, rows: Rows, mixed: torch.Tensor, out: torch.Tensor, moe: MoeWeights, following: torch.Tensor, eps: float
    ) -> Rows:
        """y = x + mixed @ out^T, then y + routed experts + gated shared expert of norm(y)."""

    def prefill_attention(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, layout: PrefillLayout | TileLayout
    ) -> torch.Tensor:
        """Causal attention of prompt rows over their slots' caches: [rows, heads * head_dim]."""

    def prefill_moe(self, x: torch.Tensor, moe: MoeWeights, following: torch.Tensor, eps: float) -> Rows:
        """x + routed experts + gated shared expert of norm(x), for many rows."""

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
        """Normalise and rotate queries and keys, store keys and values at [slot, cache row]; give queries
        [rows, heads, head_dim]. The caches are one layer's, [slots, context, kv_heads, head_dim]."""

    def decode_attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        lengths: torch.Tensor,
        longest: int,
    ) -> torch.Tensor:
        """Each query attends to the first `lengths` int64 [rows] cache rows of its slot, at most `longest`."""

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
        """Causal attention of the code predictor over its small buffers [batch, positions, kv_heads, head_dim].

        `qkv` holds one row per sequence for each new position, position-major; `first` is the first of them and
        `rotary` covers all positions. Keys and values of the new positions are stored.
        """

    def draw_first(
        self, logits: torch.Tensor, settings: RowSettings, seen: torch.Tensor, slots: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw group 0 from `logits` [rows, vocab] with penalty and suppression, and mark it in `seen` bool
        [slots, vocab]. Gives the codes int64 [rows] and their embeddings [rows, hidden]."""

    def draw(self, logits: torch.Tensor, settings: RowSettings, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw one code of a later group per row; gives the codes int64 [rows] and their embeddings."""
