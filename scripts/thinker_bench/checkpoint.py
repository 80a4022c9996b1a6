"""A checkpoint directory without weights: sizes from a config, a byte-level tokenizer, the processor's files."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIAL = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|vision_start|>": 151652,
    "<|vision_end|>": 151653,
    "<|image_pad|>": 151655,
    "<|video_pad|>": 151656,
    "<|audio_start|>": 151669,
    "<|audio_end|>": 151670,
    "<|audio_pad|>": 151675,
}
NAMES = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for item in message.content %}"
    "{%- if item.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif item.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{%- elif item.type == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{%- else %}{{- item.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
VISION = {
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "min_pixels": 3136,
    "max_pixels": 12845056,
}
AUDIO = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 300,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "right",
    "padding_value": 0.0,
    "dither": 0.0,
    "return_attention_mask": True,
}
TOY = {
    "audio_config": dict(
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=128,
        output_dim=64,
        downsample_hidden_size=32,
    ),
    "vision_config": dict(
        depth=3,
        hidden_size=64,
        num_heads=2,
        intermediate_size=128,
        out_hidden_size=64,
        deepstack_visual_indexes=[0, 1],
    ),
    "text_config": dict(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
    ),
}


def write_checkpoint(config_path: Path, out: Path, toy: bool) -> Path:
    """Write the directory; with `toy` all widths of the Thinker shrink."""
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads(config_path.read_text())
    if toy:
        for part, sizes in TOY.items():
            config["thinker_config"][part].update(sizes)
        config["thinker_config"]["text_config"]["rope_parameters"]["mrope_section"] = [6, 5, 5]
        config["talker_config"]["accept_hidden_layer"] = 3
    _tokenizer().save_pretrained(out)
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": [151645, 151643], "pad_token_id": 151643},
        "preprocessor_config.json": {
            **VISION,
            **AUDIO,
            "processor_class": "Qwen3OmniMoeProcessor",
            "image_processor_type": "Qwen2VLImageProcessor",
        },
        "video_preprocessor_config.json": {**VISION, "video_processor_type": "Qwen2VLVideoProcessor"},
    }
    for name, body in files.items():
        (out / name).write_text(json.dumps(body, indent=1))
    return out


def _tokenizer() -> PreTrainedTokenizerFast:
    letters = bytes_to_unicode()
    vocabulary = {letters[byte]: byte for byte in range(256)} | SPECIAL
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
        extra_special_tokens=NAMES,
    )
