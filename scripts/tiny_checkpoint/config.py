"""config.json of the tiny checkpoint: the published keys and special ids, with toy widths.

Every mechanism of Qwen3-Omni-30B-A3B-Instruct is present; only widths, depths and expert counts differ.
Chosen sizes and their reasons:

* The Thinker's and the Talker's hidden sizes differ, as in the published checkpoint, so that a swapped dimension
  cannot pass unnoticed.
* ``accept_hidden_layer`` lies above the number of deepstack levels: up to there the hidden states that
  ``transformers`` records are taken before the deepstack addition of the same layer.
* ``image_size`` and ``apply_vit_abs_pos_embed`` (vision), ``tie_word_embeddings`` and ``use_qk_norm`` (text) are read
  by vLLM and unknown to the Hugging Face class.
"""

from typing import Any

import transformers

THINKER_HIDDEN = 64
TALKER_HIDDEN = 128
HEAD_DIM = 32
# The published sections [24, 20, 20] of a 128-wide head, scaled to half of HEAD_DIM.
MROPE_SECTION = [6, 5, 5]

MEDIA_TOKENS = {
    "audio_token_id": 151675,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "audio_start_token_id": 151669,
    "vision_start_token_id": 151652,
    "position_id_per_seconds": 13,
    "seconds_per_chunk": 2,
}


def _decoder(**sizes: Any) -> dict[str, Any]:
    """Keys that every attention decoder of the checkpoint has, then ``sizes``."""
    common = {
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0,
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    return common | sizes


def _thinker() -> dict[str, Any]:
    audio = {
        "model_type": "qwen3_omni_moe_audio_encoder",
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128,
        "num_mel_bins": 128,
        "output_dim": THINKER_HIDDEN,
        "n_window": 50,
        "n_window_infer": 800,
        "max_source_positions": 1500,
        "conv_chunksize": 500,
        "downsample_hidden_size": 32,
        "activation_function": "gelu",
        "scale_embedding": False,
    }
    vision = {
        "model_type": "qwen3_omni_moe_vision_encoder",
        "depth": 3,
        "hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 128,
        "out_hidden_size": THINKER_HIDDEN,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [0, 1],
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "in_chans": 3,
        "image_size": 768,
        "apply_vit_abs_pos_embed": True,
    }
    text = _decoder(
        model_type="qwen3_omni_moe_text",
        vocab_size=152064,
        hidden_size=THINKER_HIDDEN,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=0,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=65536,
        use_qk_norm=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1000000,
            "mrope_section": MROPE_SECTION,
            "interleaved": True,
            "mrope_interleaved": True,
        },
    )
    return MEDIA_TOKENS | {
        "model_type": "qwen3_omni_moe_thinker",
        "dtype": "float32",
        "audio_end_token_id": 151670,
        "vision_end_token_id": 151653,
        "user_token_id": 872,
        "audio_config": audio,
        "vision_config": vision,
        "text_config": text,
    }


def _talker() -> dict[str, Any]:
    text = _decoder(
        model_type="qwen3_omni_moe_talker_text",
        vocab_size=3072,
        hidden_size=TALKER_HIDDEN,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=96,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=65536,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1000000,
            "mrope_section": MROPE_SECTION,
            "interleaved": True,
        },
    )
    code_predictor = _decoder(
        model_type="qwen3_omni_moe_talker_code_predictor",
        vocab_size=2048,
        hidden_size=TALKER_HIDDEN,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_code_groups=16,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000},
    )
    return MEDIA_TOKENS | {
        "audio_end_token_id": 151670,
        "spatial_merge_size": 2,
        "thinker_hidden_size": THINKER_HIDDEN,
        "accept_hidden_layer": 3,
        "num_code_groups": 16,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "text_config": text,
        "code_predictor_config": code_predictor,
    }


def _code2wav() -> dict[str, Any]:
    return {
        "codebook_size": 2048,
        "num_quantizers": 16,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "sliding_window": 72,
        "upsampling_ratios": [2, 2],
        "upsample_rates": [8, 5, 4, 3],
        "decoder_dim": 64,
        "max_position_embeddings": 8000,
        "rms_norm_eps": 1e-05,
        "layer_scale_initial_scale": 0.01,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000},
    }


def tiny_config() -> dict[str, Any]:
    """The whole config.json."""
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "transformers_version": transformers.__version__,
        "dtype": "float32",
        "enable_audio_output": True,
        "im_start_token_id": 151644,
        "im_end_token_id": 151645,
        "system_token_id": 8948,
        "user_token_id": 872,
        "assistant_token_id": 77091,
        "tts_pad_token_id": 151671,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
        "thinker_config": _thinker(),
        "talker_config": _talker(),
        "code2wav_config": _code2wav(),
    }


def generation_config() -> dict[str, Any]:
    """generation_config.json: where the Thinker stops, and its greedy default."""
    return {"bos_token_id": 151643, "pad_token_id": 151643, "eos_token_id": [151645, 151643], "do_sample": False}
