"""The Talker's parameters, joined the way its kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F

from python_backends.engines_common.tensor_source import TensorSource
from python_backends.talker.model.shapes import DecoderShape, TalkerShape

TEXT_TABLE_CHUNK = 16384
Mlp = TypeVar("Mlp", "MoeWeights", "MlpWeights")


@dataclass(frozen=True)
class AttentionWeights:
    """`qkv` [heads + 2 kv_heads, head_dim] flattened x hidden; `out` [hidden, heads * head_dim]; norms [.]."""

    norm: torch.Tensor
    qkv: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    out: torch.Tensor


@dataclass(frozen=True)
class MoeWeights:
    """`gate_up` [experts + shared, 2 * width, hidden] and `down` [experts + shared, hidden, width].

    The shared expert is cut into `shared` further experts of the routed width, which every row visits with the
    weight sigmoid(x @ shared_gate). `router` [experts, hidden] and `shared_gate` [1, hidden] are views of `routing`
    [experts + 1, hidden].
    """

    norm: torch.Tensor
    routing: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    shared: int
    top_k: int
    normalise: bool

    @property
    def router(self) -> torch.Tensor:
        return self.routing[:-1]

    @property
    def shared_gate(self) -> torch.Tensor:
        return self.routing[-1:]


@dataclass(frozen=True)
class MlpWeights:
    """`gate_up` [2 * intermediate, hidden]; `down` [hidden, intermediate]."""

    norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class Layer(Generic[Mlp]):
    """One transformer layer; `mlp` is a mixture of experts in the backbone and dense in the code predictor."""

    attention: AttentionWeights
    mlp: Mlp


@dataclass(frozen=True)
class Decoder(Generic[Mlp]):
    """One stack, its final norm, and the inverse rotary frequencies float32 [head_dim / 2]."""

    shape: DecoderShape
    layers: tuple[Layer[Mlp], ...]
    norm: torch.Tensor
    inv_freq: torch.Tensor

    @property
    def following_norms(self) -> tuple[torch.Tensor, ...]:
        """For each layer the weight of the norm that comes after it."""
        return (*(layer.attention.norm for layer in self.layers[1:]), self.norm)


@dataclass(frozen=True)
class Projection:
    """Two-layer SiLU projection from the Thinker's width to the Talker's."""

    fc1: torch.Tensor
    bias1: torch.Tensor
    fc2: torch.Tensor
    bias2: torch.Tensor

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(F.silu(F.linear(rows, self.fc1, self.bias1)), self.fc2, self.bias2)


@dataclass(frozen=True)
class TalkerWeights:
    """`text_table` [text_vocab, hidden]: projected embeddings of all text ids.

    `codec_table` [codec_rows + 1, hidden]: the codec embeddings of all groups one after another, then a row of zeros;
    `codec_offsets` int64 [groups]: first row of each group. `codec_head` [vocab, hidden];
    `predictor_heads` [groups - 1, predictor_vocab, hidden].
    """

    backbone: Decoder[MoeWeights]
    predictor: Decoder[MlpWeights]
    text_table: torch.Tensor
    hidden_projection: Projection
    codec_table: torch.Tensor
    codec_offsets: torch.Tensor
    codec_head: torch.Tensor
    predictor_heads: torch.Tensor


def load_weights(source: TensorSource, shape: TalkerShape, device: torch.device) -> TalkerWeights:
    """Read every tensor the Talker needs, and project the text table once."""
    hidden, predictor = shape.backbone.hidden, shape.predictor
    tables = [source.get("talker.model.codec_embedding.weight", (shape.backbone.vocab, hidden))]
    heads = []
    for group in range(shape.groups - 1):
        name = f"talker.code_predictor.model.codec_embedding.{group}.weight"
        tables.append(source.get(name, (predictor.vocab, hidden)))
        heads.append(source.get(f"talker.code_predictor.lm_head.{group}.weight", (predictor.vocab, hidden)))
    sizes = torch.tensor([0] + [len(table) for table in tables[:-1]], device=device)
    return TalkerWeights(
        backbone=_decoder(source, "talker.model", shape.backbone, device, _moe),
        predictor=_decoder(source, "talker.code_predictor.model", predictor, device, _mlp),
        text_table=_text_table(source, shape),
        hidden_projection=_projection(source, "talker.hidden_projection", shape),
        codec_table=torch.cat([*tables, torch.zeros_like(tables[0][:1])]),
        codec_offsets=sizes.cumsum(0),
        codec_head=source.get("talker.codec_head.weight", (shape.backbone.vocab, hidden)),
        predictor_heads=torch.stack(heads),
    )


def _decoder(
    source: TensorSource,
    prefix: str,
    shape: DecoderShape,
    device: torch.device,
    read_mlp: Callable[[TensorSource, str, DecoderShape], Mlp],
) -> Decoder[Mlp]:
    layers = []
    for index in range(shape.layers):
        name = f"{prefix}.layers.{index}"
        layers.append(Layer(_attention(source, name, shape), read_mlp(source, name, shape)))
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device) / shape.head_dim
    norm = source.get(f"{prefix}.norm.weight", (shape.hidden,))
    return Decoder(shape, tuple(layers), norm, 1.0 / shape.rope_theta**exponents)


def _attention(source: TensorSource, layer: str, shape: DecoderShape) -> AttentionWeights:
    name, dim = f"{layer}.self_attn", shape.head_dim
    rows = (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))
    qkv = [source.get(f"{name}.{part}_proj.weight", (heads * dim, shape.hidden)) for part, heads in rows]
    return AttentionWeights(
        norm=source.get(f"{layer}.input_layernorm.weight", (shape.hidden,)),
        qkv=torch.cat(qkv),
        q_norm=source.get(f"{name}.q_norm.weight", (dim,)),
        k_norm=source.get(f"{name}.k_norm.weight", (dim,)),
        out=source.get(f"{name}.o_proj.weight", (shape.hidden, shape.heads * dim)),
    )


def _gate_up_down(source: TensorSource, name: str, width: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    gate = source.get(f"{name}.gate_proj.weight", (width, hidden))
    up = source.get(f"{name}.up_proj.weight", (width, hidden))
    return torch.cat([gate, up]), source.get(f"{name}.down_proj.weight", (hidden, width))


def _mlp(source: TensorSource, layer: str, shape: DecoderShape) -> MlpWeights:
    gate_up, down = _gate_up_down(source, f"{layer}.mlp", shape.intermediate, shape.hidden)
    return MlpWeights(source.get(f"{layer}.post_attention_layernorm.weight", (shape.hidden,)), gate_up, down)


def _moe(source: TensorSource, layer: str, shape: DecoderShape) -> MoeWeights:
    name, width, hidden = f"{layer}.mlp", shape.expert_intermediate, shape.hidden
    shared = -(-shape.shared_intermediate // width)
    first = source.get(f"{name}.gate.weight", (shape.experts, hidden))
    gate_up = first.new_zeros(shape.experts + shared, 2 * width, hidden)
    down = first.new_zeros(shape.experts + shared, hidden, width)
    if source.has(f"{name}.experts.gate_up_proj"):
        fused = (shape.experts, 2 * width, hidden)
        gate_up[: shape.experts] = source.get(f"{name}.experts.gate_up_proj", fused)
        down[: shape.experts] = source.get(f"{name}.experts.down_proj", (shape.experts, hidden, width))
    else:
        for expert in range(shape.experts):
            one = _gate_up_down(source, f"{name}.experts.{expert}", width, hidden)
            gate_up[expert], down[expert] = one
    joined, shared_down = _gate_up_down(source, f"{name}.shared_expert", shape.shared_intermediate, hidden)
    shared_gate, shared_up = joined.chunk(2)
    for part in range(shared):
        columns = slice(part * width, min((part + 1) * width, shape.shared_intermediate))
        count = columns.stop - columns.start
        gate_up[shape.experts + part, :count] = shared_gate[columns]
        gate_up[shape.experts + part, width : width + count] = shared_up[columns]
        down[shape.experts + part, :, :count] = shared_down[:, columns]
    return MoeWeights(
        norm=source.get(f"{layer}.post_attention_layernorm.weight", (hidden,)),
        routing=torch.cat([first, source.get(f"{name}.shared_expert_gate.weight", (1, hidden))]),
        gate_up=gate_up,
        down=down,
        shared=shared,
        top_k=shape.experts_per_row,
        normalise=shape.normalise_routing,
    )


def _projection(source: TensorSource, name: str, shape: TalkerShape) -> Projection:
    middle, hidden = shape.projection_intermediate, shape.backbone.hidden
    return Projection(
        source.get(f"{name}.linear_fc1.weight", (middle, shape.thinker_hidden)),
        source.get(f"{name}.linear_fc1.bias", (middle,)),
        source.get(f"{name}.linear_fc2.weight", (hidden, middle)),
        source.get(f"{name}.linear_fc2.bias", (hidden,)),
    )


def _text_table(source: TensorSource, shape: TalkerShape) -> torch.Tensor:
    projection = _projection(source, "talker.text_projection", shape)
    embeddings = source.get("thinker.model.embed_tokens.weight", (shape.text_vocab, shape.thinker_hidden))
    table = projection.fc2.new_empty(shape.text_vocab, shape.backbone.hidden)
    for start in range(0, shape.text_vocab, TEXT_TABLE_CHUNK):
        table[start : start + TEXT_TABLE_CHUNK] = projection(embeddings[start : start + TEXT_TABLE_CHUNK])
    return table
