"""A tiny random Qwen3-Omni whose Talker speaks varied codes, built with transformers as the oracle."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

TEXT = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
ROPE = {"rope_type": "default", "rope_theta": 1000000, "mrope_section": [4, 2, 2], "interleaved": True}
MEDIA_IDS = dict(
    audio_token_id=151675,
    image_token_id=151655,
    video_token_id=151656,
    audio_start_token_id=151669,
    vision_start_token_id=151652,
    position_id_per_seconds=13,
)
THINKER_HIDDEN = 32
END_SCALE = 1.3


def tiny_config() -> Qwen3OmniMoeConfig:
    """Published token ids and vocabularies, toy widths: 2 backbone layers, 8 experts, 2 predictor layers."""
    thinker_text = dict(
        TEXT,
        vocab_size=152064,
        intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        rope_parameters=dict(ROPE),
    )
    audio = dict(
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        output_dim=32,
        downsample_hidden_size=16,
        num_mel_bins=128,
        max_source_positions=1500,
    )
    vision = dict(
        depth=1,
        hidden_size=32,
        intermediate_size=32,
        num_heads=2,
        out_hidden_size=32,
        deepstack_visual_indexes=[0],
        num_position_embeddings=16,
    )
    talker_text = dict(
        TEXT,
        vocab_size=3072,
        intermediate_size=48,
        num_experts=8,
        num_local_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=32,
        norm_topk_prob=True,
        rope_parameters=dict(ROPE),
        initializer_range=0.2,
    )
    predictor = dict(
        TEXT,
        vocab_size=2048,
        intermediate_size=48,
        num_code_groups=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000},
        initializer_range=0.2,
    )
    code2wav = dict(
        codebook_size=2048,
        hidden_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=1,
        intermediate_size=32,
        decoder_dim=32,
    )
    return Qwen3OmniMoeConfig(
        thinker_config=dict(MEDIA_IDS, text_config=thinker_text, audio_config=audio, vision_config=vision),
        talker_config=dict(
            MEDIA_IDS,
            text_config=talker_text,
            code_predictor_config=predictor,
            num_code_groups=16,
            thinker_hidden_size=THINKER_HIDDEN,
            accept_hidden_layer=1,
            codec_pad_id=2148,
            codec_bos_id=2149,
            codec_eos_token_id=2150,
            codec_nothink_id=2155,
            codec_think_bos_id=2156,
            codec_think_eos_id=2157,
            speaker_id={"chelsie": 2301, "ethan": 2302, "aiden": 2303},
            spatial_merge_size=2,
            initializer_range=0.2,
        ),
        code2wav_config=code2wav,
        enable_audio_output=True,
    )


def build_model(seed: int = 0) -> Qwen3OmniMoeForConditionalGeneration:
    """Float32 model on the CPU; the end token's logit row is enlarged so that greedy answers end on their own."""
    torch.manual_seed(seed)
    model = Qwen3OmniMoeForConditionalGeneration(tiny_config()).eval()
    with torch.no_grad():
        for name, parameter in model.talker.named_parameters():
            if "norm" in name:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            elif "code_predictor" not in name:
                parameter.normal_(0.0, 0.2)
            else:
                parameter.normal_(0.0, 0.3)
        model.thinker.model.embed_tokens.weight.normal_(0.0, 1.0)
        model.talker.codec_head.weight[2150] *= END_SCALE
    return model


def save_model(model: Qwen3OmniMoeForConditionalGeneration, path: Path) -> Path:
    """Write the model as a Hugging Face directory and return `path`."""
    model.save_pretrained(path, max_shard_size="8MB")
    return path
