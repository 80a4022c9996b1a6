"""Code2Wav as a streaming decoder: every frame is decoded once, and chunks join without a seam."""

from __future__ import annotations

import torch

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.ops import Batch, Ops
from python_backends.code2wav.parameters import Code2WavParameters, DecoderBlock, TransformerLayer, UpsampleBlock
from python_backends.code2wav.state import BlockState, StreamState


class Code2WavModel:
    """The network over a batch of streams with different histories, each with the same number of new frames.

    Equal to the unchunked forward of `transformers`' `Qwen3OmniMoeCode2Wav`: layers read the rows before the chunk
    from the state, and rows that only a stream's start would add are zeroed where a later row could see them.
    """

    def __init__(self, config: Code2WavConfig, parameters: Code2WavParameters, ops: Ops) -> None:
        self.config = config
        self.parameters = parameters
        self.ops = ops

    @torch.no_grad()
    def forward(self, codes: torch.Tensor, batch: Batch, state: StreamState) -> torch.Tensor:
        """`codes`: [batch, frames, quantizers] int64. Returns float32 samples [batch, frames · samples_per_frame].

        The first `config.startup_samples` samples of a stream at position 0 are no part of its waveform.
        """
        hidden = self.transformer(codes, batch, state)
        activated = self.entry(self.upsample(hidden, batch, state), batch, state)
        for index in range(len(self.parameters.blocks)):
            activated = self.block(index, activated, batch, state)
        return self.waveform(activated, batch, state)

    def transformer(self, codes: torch.Tensor, batch: Batch, state: StreamState) -> torch.Tensor:
        """Codes to hidden states [batch, frames, hidden]."""
        hidden = self.ops.embed(self.parameters.embedding, codes)
        for layer, pool in zip(self.parameters.layers, state.attention, strict=True):
            hidden = self._layer(hidden, layer, pool, batch)
        return self.ops.rms_norm(hidden, self.parameters.norm, self.config.rms_norm_eps)

    def _layer(self, hidden: torch.Tensor, layer: TransformerLayer, pool: torch.Tensor, batch: Batch) -> torch.Tensor:
        ops, config = self.ops, self.config
        qkv = ops.rms_norm(hidden, layer.input_norm, config.rms_norm_eps) @ layer.qkv
        cos, sin = self.parameters.cos, self.parameters.sin
        queries, keys_values = ops.rotate(qkv, cos, sin, batch, pool.shape[1], config.num_attention_heads)
        ops.roll(keys_values, pool, batch)
        attended = ops.window_attention(queries, keys_values, batch, config.num_attention_heads, config.head_dim)
        hidden = ops.linear_add(attended, layer.output, hidden)
        gate_up = ops.rms_norm(hidden, layer.post_norm, config.rms_norm_eps) @ layer.gate_up
        return ops.linear_add(ops.silu_gate(gate_up), layer.down, hidden)

    def upsample(self, hidden: torch.Tensor, batch: Batch, state: StreamState) -> torch.Tensor:
        """Hidden states to the decoder's rate."""
        for block, pool in zip(self.parameters.upsample, state.depthwise, strict=True):
            hidden = self._upsample_block(hidden, block, pool, batch)
        return hidden

    def _upsample_block(
        self, hidden: torch.Tensor, block: UpsampleBlock, pool: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        ops = self.ops
        rows, _ = ops.tap_conv(hidden, block.up, channels=hidden.shape[-1])
        buffer = ops.buffer(rows, pool.shape[1])
        ops.roll(buffer, pool, batch)
        normed = ops.depthwise_norm(buffer, block.depthwise, block.depthwise_bias, block.norm, block.norm_bias)
        expanded = ops.gelu_linear(normed, block.expand, block.expand_bias)
        return ops.linear_add(expanded, block.contract, rows + block.contract_bias)

    def entry(self, hidden: torch.Tensor, batch: Batch, state: StreamState) -> torch.Tensor:
        """The decoder's first convolution. Returns the activated buffer that the first block reads."""
        buffer = self.ops.buffer(hidden, state.entry.shape[1])
        self.ops.roll(buffer, state.entry, batch)
        context = self.parameters.blocks[0].up.context
        _, activated = self.ops.tap_conv(
            buffer, self.parameters.entry, after=self.parameters.entry_after, context=context
        )
        return activated

    def block(self, index: int, activated: torch.Tensor, batch: Batch, state: StreamState) -> torch.Tensor:
        """Decoder block `index`. Takes and returns activated buffers whose context rows are still free."""
        blocks = self.parameters.blocks
        last = index + 1 == len(blocks)
        following = self.parameters.final.context if last else blocks[index + 1].up.context
        return self._block(blocks[index], state.blocks[index], activated, batch, following)

    def _block(
        self, block: DecoderBlock, pools: BlockState, activated: torch.Tensor, batch: Batch, following: int
    ) -> torch.Tensor:
        ops, contexts = self.ops, [unit.conv1.context for unit in block.units]
        ops.roll(activated, pools.up, batch)
        rows, activated = ops.tap_conv(
            activated,
            block.up,
            after=block.after,
            channels=block.channels,
            context=contexts[0],
            startup_rows=block.startup_rows,
            batch=batch,
            keep=True,
        )
        for unit, pool, context in zip(block.units, pools.units, [*contexts[1:], following], strict=True):
            ops.roll(activated, pool, batch)
            rows, activated = ops.residual_unit(
                activated,
                rows,
                unit,
                context=context,
                startup_rows=block.startup_rows,
                batch=batch,
                keep=unit is not block.units[-1],
            )
        return activated

    def waveform(self, activated: torch.Tensor, batch: Batch, state: StreamState) -> torch.Tensor:
        """The last convolution and the clamp."""
        self.ops.roll(activated, state.final, batch)
        return self.ops.waveform(activated, self.parameters.final)
