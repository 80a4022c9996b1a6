"""Slot pools that hold the streaming state of every open stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.parameters import Code2WavParameters

DEPTHWISE_CONTEXT = 6


@dataclass(frozen=True)
class BlockState:
    """Pools of one decoder block: the transposed convolution's last input, the context of each residual unit."""

    up: torch.Tensor
    units: tuple[torch.Tensor, ...]


class StreamState:
    """Pools [slots + 1, rows, channels]: the last `rows` inputs of a layer, per stream. The last slot is scratch.

    Rows that padding adds to a batch use the scratch slot. A slot's contents are never cleared: a stream at position
    0 reads zeros instead (`Ops.roll`), so that nothing of the slot's last owner reaches it.
    """

    def __init__(
        self, config: Code2WavConfig, parameters: Code2WavParameters, slots: int, device: str, dtype: torch.dtype
    ) -> None:
        def pool(rows: int, channels: int) -> torch.Tensor:
            return torch.zeros(slots + 1, rows, channels, device=device, dtype=dtype)

        self.slots = slots
        key_value = 2 * config.num_key_value_heads * config.head_dim
        self.attention = tuple(pool(config.sliding_window - 1, key_value) for _ in parameters.layers)
        self.depthwise = tuple(pool(DEPTHWISE_CONTEXT, config.hidden_size) for _ in parameters.upsample)
        self.entry = pool(parameters.entry.context, config.hidden_size)
        self.blocks = tuple(
            BlockState(
                pool(block.up.context, block.up.weight.shape[1]),
                tuple(pool(unit.conv1.context, block.channels) for unit in block.units),
            )
            for block in parameters.blocks
        )
        self.final = pool(parameters.final.context, parameters.final.weight.shape[1])

    @property
    def scratch(self) -> int:
        return self.slots

    def pools(self) -> tuple[torch.Tensor, ...]:
        """All pools, in the order in which the model visits them."""
        blocks = tuple(pool for block in self.blocks for pool in (block.up, *block.units))
        return (*self.attention, *self.depthwise, self.entry, *blocks, self.final)
