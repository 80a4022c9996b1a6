"""Sizes and token ids of the Talker, read from a checkpoint's config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeConfig


@dataclass(frozen=True)
class DecoderShape:
    """One transformer stack. `experts` 0 means a dense MLP of width `intermediate`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    rope_theta: float
    eps: float
    experts: int = 0
    experts_per_row: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    normalise_routing: bool = False
    mrope_section: tuple[int, int, int] = (0, 0, 0)

    @property
    def qkv(self) -> int:
        """Columns of the joined query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True)
class TokenIds:
    """Ids with a meaning in the prompt layout and the codec vocabulary."""

    im_start: int
    user: int
    assistant: int
    tts_bos: int
    tts_eos: int
    tts_pad: int
    audio: int
    image: int
    video: int
    audio_start: int
    vision_start: int
    codec_bos: int
    codec_eos: int
    codec_pad: int
    codec_nothink: int
    codec_think_bos: int
    codec_think_eos: int


@dataclass(frozen=True)
class TalkerShape:
    """The whole Talker stage."""

    backbone: DecoderShape
    predictor: DecoderShape
    groups: int
    text_vocab: int
    thinker_hidden: int
    projection_intermediate: int
    ids: TokenIds
    speakers: dict[str, int]
    position_id_per_seconds: int
    spatial_merge_size: int
    audio_n_window: int
    max_positions: int


def _rope(config: object) -> dict:
    return dict(getattr(config, "rope_parameters", None) or {})


def read_shape(path: str | Path) -> TalkerShape:
    """Read a Hugging Face directory, or a config JSON itself. Raises ValueError for a model we do not cover."""
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    config = Qwen3OmniMoeConfig.from_dict(json.loads(file.read_text()))
    talker, thinker = config.talker_config, config.thinker_config
    text, predictor = talker.text_config, talker.code_predictor_config
    for part in (text, predictor):
        if part.attention_bias or part.hidden_act != "silu" or _rope(part).get("rope_type") != "default":
            raise ValueError("the Talker needs attention without bias, SiLU and default rotary embeddings")
    if text.mlp_only_layers or text.decoder_sparse_step != 1:
        raise ValueError("the Talker needs a mixture of experts in every layer")
    if any(kind != "full_attention" for kind in predictor.layer_types):
        raise ValueError("the code predictor needs full attention in every layer")
    backbone = DecoderShape(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        vocab=text.vocab_size,
        intermediate=0,
        rope_theta=float(_rope(text)["rope_theta"]),
        eps=text.rms_norm_eps,
        experts=text.num_local_experts,
        experts_per_row=text.num_experts_per_tok,
        expert_intermediate=text.moe_intermediate_size,
        shared_intermediate=text.shared_expert_intermediate_size,
        normalise_routing=text.norm_topk_prob,
        mrope_section=tuple(_rope(text).get("mrope_section", (24, 20, 20))),
    )
    predictor_shape = DecoderShape(
        layers=predictor.num_hidden_layers,
        hidden=predictor.hidden_size,
        heads=predictor.num_attention_heads,
        kv_heads=predictor.num_key_value_heads,
        head_dim=predictor.head_dim,
        vocab=predictor.vocab_size,
        intermediate=predictor.intermediate_size,
        rope_theta=float(_rope(predictor)["rope_theta"]),
        eps=predictor.rms_norm_eps,
    )
    if predictor_shape.hidden != backbone.hidden:
        raise ValueError("the code predictor must be as wide as the backbone")
    return TalkerShape(
        backbone=backbone,
        predictor=predictor_shape,
        groups=talker.num_code_groups,
        max_positions=text.max_position_embeddings,
        text_vocab=thinker.text_config.vocab_size,
        thinker_hidden=talker.thinker_hidden_size,
        projection_intermediate=text.intermediate_size,
        ids=TokenIds(
            im_start=config.im_start_token_id,
            user=config.user_token_id,
            assistant=config.assistant_token_id,
            tts_bos=config.tts_bos_token_id,
            tts_eos=config.tts_eos_token_id,
            tts_pad=config.tts_pad_token_id,
            audio=thinker.audio_token_id,
            image=thinker.image_token_id,
            video=thinker.video_token_id,
            audio_start=talker.audio_start_token_id,
            vision_start=talker.vision_start_token_id,
            codec_bos=talker.codec_bos_id,
            codec_eos=talker.codec_eos_token_id,
            codec_pad=talker.codec_pad_id,
            codec_nothink=talker.codec_nothink_id,
            codec_think_bos=talker.codec_think_bos_id,
            codec_think_eos=talker.codec_think_eos_id,
        ),
        speakers={name.lower(): int(code) for name, code in (talker.speaker_id or {}).items()},
        position_id_per_seconds=talker.position_id_per_seconds,
        spatial_merge_size=talker.spatial_merge_size,
        audio_n_window=thinker.audio_config.n_window,
    )
