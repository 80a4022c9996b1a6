"""Tokenizer, chat template and processor files of the tiny checkpoint.

The byte-level BPE ranks are Qwen's own, read from ``qwen.tiktoken`` in the ``dashscope`` package; the special tokens
have their published ids (151643 and up).
"""

import base64
import functools
import importlib.util
import json
from pathlib import Path

from transformers import AddedToken, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import Qwen2Converter, TikTokenConverter

# Ids follow from the position: 151643, 151644, ...
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
# As published: text that names a tool or a thought is not hidden when special tokens are skipped in decoding.
VISIBLE_TOKENS = {
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
}
MEDIA_TOKEN_NAMES = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")

VISION_SIZES = {
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "min_pixels": 3136,
    "max_pixels": 12845056,
}
PREPROCESSOR = VISION_SIZES | {
    "processor_class": "Qwen3OmniMoeProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
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
VIDEO_PREPROCESSOR = VISION_SIZES | {"video_processor_type": "Qwen2VLVideoProcessor"}


@functools.cache
def bpe_file() -> Path:
    """Path of Qwen's ``qwen.tiktoken``; RuntimeError if the ``dashscope`` package is not installed."""
    # find_spec does not run the package, whose own dependencies are not installed.
    spec = importlib.util.find_spec("dashscope")
    if spec is None or spec.origin is None:
        raise RuntimeError("The package 'dashscope' holds Qwen's BPE ranks and is missing: run scripts/setup.sh.")
    return Path(spec.origin).parent / "resources" / "qwen.tiktoken"


@functools.cache
def token_bytes() -> tuple[bytes, ...]:
    """The bytes of each base token; the index is the token id, 0 to 151642."""
    ranks = (line.split() for line in bpe_file().read_bytes().splitlines() if line)
    by_id = {int(rank): base64.b64decode(token) for token, rank in ranks}
    return tuple(by_id[index] for index in range(len(by_id)))


@functools.cache
def build_tokenizer() -> Qwen2Tokenizer:
    """Qwen's fast tokenizer with the published special tokens and the chat template."""
    vocab, merges = TikTokenConverter(vocab_file=str(bpe_file())).extract_vocab_merges_from_model(str(bpe_file()))
    backend = Qwen2Converter(None).converted(vocab, merges)
    backend.add_tokens(
        [AddedToken(token, special=token not in VISIBLE_TOKENS, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer = Qwen2Tokenizer(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        model_max_length=131072,
        clean_up_tokenization_spaces=False,
        extra_special_tokens=MEDIA_TOKEN_NAMES,
        chat_template=CHAT_TEMPLATE,
    )
    first = len(vocab)
    for offset, token in enumerate(SPECIAL_TOKENS):
        if tokenizer.convert_tokens_to_ids(token) != first + offset:
            raise RuntimeError(f"special token {token} has not its published id {first + offset}")
    return tokenizer


def save_processor(out: Path) -> None:
    """Write tokenizer, chat template and pre-processor files into ``out``."""
    build_tokenizer().save_pretrained(out)
    files = {
        "chat_template.json": {"chat_template": CHAT_TEMPLATE},
        "preprocessor_config.json": PREPROCESSOR,
        "video_preprocessor_config.json": VIDEO_PREPROCESSOR,
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
