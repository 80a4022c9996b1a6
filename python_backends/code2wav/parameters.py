"""Weights in the form the device uses: channels last, constants folded, activations beside the layer before them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from python_backends.code2wav.config import Code2WavConfig

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TapConv:
    """A causal convolution as a sum of products: out[t] = bias + Σ_j src[t + j·dilation] @ weight[j].

    `weight`: [taps, in, out]; `bias`: [out] float32. `src` starts `context` rows before the first output row.
    A transposed convolution is one too: its `out` holds the rows of one input step, [rate, channels] flattened.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    dilation: int = 1

    @property
    def context(self) -> int:
        return (self.weight.shape[0] - 1) * self.dilation


@dataclass(frozen=True)
class Snake:
    """SnakeBeta: x + inverse_beta · sin²(alpha · x), exponentials folded. Both [channels] float32."""

    alpha: torch.Tensor
    inverse_beta: torch.Tensor


@dataclass(frozen=True)
class ResidualUnit:
    """x + conv2(middle(conv1(s))), where s is the activation that the layer before applied; `after` is the next one."""

    conv1: TapConv
    middle: Snake
    conv2: TapConv
    after: Snake


@dataclass(frozen=True)
class DecoderBlock:
    """Upsampling by `rate` to `channels`, then residual units. `after` holds the first unit's activation, per row."""

    up: TapConv
    after: Snake
    units: tuple[ResidualUnit, ...]
    rate: int
    channels: int
    startup_rows: int


@dataclass(frozen=True)
class TransformerLayer:
    """One pre-norm layer; the layer scales are folded into `output` and `down`. Matrices are [in, out]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class UpsampleBlock:
    """Transposed convolution of kernel = stride, then a ConvNeXt block with `gamma` folded into the second product."""

    up: TapConv
    ratio: int
    depthwise: torch.Tensor
    depthwise_bias: torch.Tensor
    norm: torch.Tensor
    norm_bias: torch.Tensor
    expand: torch.Tensor
    expand_bias: torch.Tensor
    contract: torch.Tensor
    contract_bias: torch.Tensor


@dataclass(frozen=True)
class Code2WavParameters:
    """All weights. `embedding`: [quantizers · codebook, hidden], already divided by the number of quantizers."""

    embedding: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    layers: tuple[TransformerLayer, ...]
    norm: torch.Tensor
    upsample: tuple[UpsampleBlock, ...]
    entry: TapConv
    entry_after: Snake
    blocks: tuple[DecoderBlock, ...]
    final: TapConv


def build_parameters(
    tensors: Tensors, config: Code2WavConfig, device: str | torch.device, dtype: torch.dtype
) -> Code2WavParameters:
    """Fold checkpoint tensors (names without `code2wav.`) in float32, then cast matrices to `dtype` on `device`.

    Norms, biases and activation parameters stay float32.
    """

    def read(name: str) -> torch.Tensor:
        return tensors[name].to(device=device, dtype=torch.float32)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype).contiguous()

    def conv(name: str, dilation: int = 1) -> TapConv:
        return TapConv(cast(read(name + ".weight").permute(2, 1, 0)), read(name + ".bias"), dilation)

    def snake(name: str, repeat: int = 1) -> Snake:
        beta = torch.exp(read(name + ".beta"))
        return Snake(torch.exp(read(name + ".alpha")).repeat(repeat), (1.0 / (beta + 1e-9)).repeat(repeat))

    def transposed(name: str, rate: int) -> TapConv:
        weight = read(name + ".weight").permute(2, 0, 1)
        steps = weight.unflatten(0, (-1, rate)).flip(0)
        return TapConv(cast(steps.permute(0, 2, 1, 3).flatten(2)), read(name + ".bias").repeat(rate))

    def layer(prefix: str) -> TransformerLayer:
        qkv = torch.cat([read(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"])
        output = read(prefix + "self_attn_layer_scale.scale")[:, None] * read(prefix + "self_attn.o_proj.weight")
        down = read(prefix + "mlp_layer_scale.scale")[:, None] * read(prefix + "mlp.down_proj.weight")
        gate_up = torch.cat([read(prefix + "mlp.gate_proj.weight"), read(prefix + "mlp.up_proj.weight")])
        norms = (read(prefix + name + ".weight") for name in ("input_layernorm", "post_attention_layernorm"))
        input_norm, post_norm = norms
        return TransformerLayer(input_norm, cast(qkv.T), cast(output.T), post_norm, cast(gate_up.T), cast(down.T))

    def upsample(prefix: str, ratio: int) -> UpsampleBlock:
        gamma = read(prefix + "1.gamma")
        return UpsampleBlock(
            up=transposed(prefix + "0.conv", ratio),
            ratio=ratio,
            depthwise=cast(read(prefix + "1.dwconv.conv.weight")[:, 0].T),
            depthwise_bias=read(prefix + "1.dwconv.conv.bias"),
            norm=read(prefix + "1.norm.weight"),
            norm_bias=read(prefix + "1.norm.bias"),
            expand=cast(read(prefix + "1.pwconv1.weight").T),
            expand_bias=cast(read(prefix + "1.pwconv1.bias")),
            contract=cast((gamma[:, None] * read(prefix + "1.pwconv2.weight")).T),
            contract_bias=cast(gamma * read(prefix + "1.pwconv2.bias")),
        )

    def block(index: int) -> DecoderBlock:
        prefix, rate = f"decoder.{index + 1}.block.", config.upsample_rates[index]
        following = f"decoder.{index + 2}" + (".block.0" if index + 1 < len(config.upsample_rates) else "")
        units = tuple(
            ResidualUnit(
                conv(f"{prefix}{number}.conv1.conv", dilation),
                snake(f"{prefix}{number}.act2"),
                conv(f"{prefix}{number}.conv2.conv"),
                snake(f"{prefix}{number + 1}.act1" if number < 4 else following),
            )
            for number, dilation in ((2, 1), (3, 3), (4, 9))
        )
        return DecoderBlock(
            up=transposed(prefix + "1.conv", rate),
            after=snake(prefix + "2.act1", rate),
            units=units,
            rate=rate,
            channels=config.decoder_dim // 2 ** (index + 1),
            startup_rows=config.startup_rows[index],
        )

    # The same float32 formula as transformers' default rotary embedding: theta^(-2i/d), position · frequency.
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
    angles = (positions[:, None] * (1.0 / config.rope_theta**exponent)).to(device)
    return Code2WavParameters(
        embedding=cast(read("code_embedding.weight") / config.num_quantizers),
        cos=angles.cos(),
        sin=angles.sin(),
        layers=tuple(layer(f"pre_transformer.layers.{index}.") for index in range(config.num_hidden_layers)),
        norm=read("pre_transformer.norm.weight"),
        upsample=tuple(upsample(f"upsample.{index}.", ratio) for index, ratio in enumerate(config.upsampling_ratios)),
        entry=conv("decoder.0.conv"),
        entry_after=snake("decoder.1.block.0"),
        blocks=tuple(block(index) for index in range(len(config.upsample_rates))),
        final=conv(f"decoder.{len(config.upsample_rates) + 2}.conv"),
    )
