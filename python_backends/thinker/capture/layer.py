"""A decoder layer that also copies its input, the residual stream, into a static buffer."""

from __future__ import annotations

import torch
from vllm.model_executor.models.qwen3_moe import Qwen3MoeDecoderLayer


class CapturingLayer(Qwen3MoeDecoderLayer):
    """Layer k whose input is `hidden_states[k]` of `transformers`.

    The copy is part of what is compiled and of every CUDA graph; rows of padding tokens come along and are not read.
    """

    captured: torch.Tensor

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = hidden_states if residual is None else hidden_states + residual
        self.captured.narrow(0, 0, rows.shape[0]).copy_(rows)
        return super().forward(positions, hidden_states, residual)


def capture_input_of(layer: Qwen3MoeDecoderLayer, max_tokens: int) -> torch.Tensor:
    """Make `layer` capture, before it is compiled; return the buffer [max_tokens, hidden] in the layer's dtype."""
    weight = layer.input_layernorm.weight
    buffer = torch.zeros(max_tokens, weight.shape[0], dtype=weight.dtype, device=weight.device)
    layer.register_buffer("captured", buffer, persistent=False)
    layer.__class__ = CapturingLayer
    return buffer
