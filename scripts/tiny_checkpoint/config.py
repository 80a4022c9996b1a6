"""config.json of the tiny checkpoint: the published one of Qwen3-Omni-30B-A3B-Instruct, with toy widths.

Every mechanism is present; only widths, depths and expert counts differ. Chosen sizes and their reasons:

* The Thinker's and the Talker's hidden sizes differ, as in the published checkpoint, so that a swapped dimension
  cannot pass unnoticed.
* ``accept_hidden_layer`` lies above the number of deepstack levels: up to there the hidden states that
  ``transformers`` records are taken before the deepstack addition of the same layer.
"""

import json
from pathlib import Path
from typing import Any

import transformers

PUBLISHED = Path(__file__).with_name("published.config.json")
THINKER_HIDDEN, TALKER_HIDDEN = 64, 128
# The published sections [24, 20, 20] of a 128-wide head, scaled to half of a head here.
HEADS = {"head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "attention_dropout": 0, "use_cache": True}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
MROPE = {"rope_parameters": {"mrope_section": [6, 5, 5]}}

AUDIO = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}
AUDIO |= {"output_dim": THINKER_HIDDEN, "downsample_hidden_size": 32}
VISION = {"depth": 3, "hidden_size": 64, "num_heads": 2, "intermediate_size": 128}
VISION |= {"out_hidden_size": THINKER_HIDDEN, "deepstack_visual_indexes": [0, 1]}
THINKER = HEADS | EXPERTS | MROPE | {"hidden_size": THINKER_HIDDEN, "num_hidden_layers": 4}
THINKER |= {"intermediate_size": 64, "num_experts": 8}
TALKER = HEADS | EXPERTS | MROPE | {"hidden_size": TALKER_HIDDEN, "num_hidden_layers": 3}
TALKER |= {"intermediate_size": 128, "shared_expert_intermediate_size": 96}
CODE_PREDICTOR = HEADS | {"hidden_size": TALKER_HIDDEN, "num_hidden_layers": 2, "intermediate_size": 256}
CODE_PREDICTOR |= {"tie_word_embeddings": False}
CODE2WAV = {"decoder_dim": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
CODE2WAV |= {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_dropout": 0}


def tiny_config() -> dict[str, Any]:
    """The whole config.json."""
    tiny = {
        "transformers_version": transformers.__version__,
        "dtype": "float32",
        "thinker_config": {
            "dtype": "float32",
            "audio_config": AUDIO,
            "vision_config": VISION,
            "text_config": THINKER,
        },
        "talker_config": {
            "thinker_hidden_size": THINKER_HIDDEN,
            "accept_hidden_layer": 3,
            "text_config": TALKER,
            "code_predictor_config": CODE_PREDICTOR,
        },
        "code2wav_config": CODE2WAV,
    }
    return _merged(json.loads(PUBLISHED.read_text()), tiny)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """``below`` with the keys of ``above``, dictionaries key by key."""
    return below | {
        name: _merged(below[name], value) if isinstance(value, dict) else value for name, value in above.items()
    }


def generation_config() -> dict[str, Any]:
    """generation_config.json: where the Thinker stops, and its greedy default."""
    return {"bos_token_id": 151643, "pad_token_id": 151643, "eos_token_id": [151645, 151643], "do_sample": False}
