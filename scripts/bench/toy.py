"""The models that are timed: the published sizes, or toy widths, with random weights made on the device."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from python_backends.code2wav.config import Code2WavConfig
from scripts.tiny_checkpoint.config import PUBLISHED

_NARROW = dict(
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
_EXPERTS = dict(
    num_local_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, shared_expert_intermediate_size=32
)
TOY_CODE2WAV = Code2WavConfig(
    codebook_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=16,
    decoder_dim=64,
)


def config_file(toy: bool) -> Path:
    """A config.json for `load_format: dummy`; a toy one lies in a temporary directory."""
    config = json.loads(PUBLISHED.read_text())
    if toy:
        talker = config["talker_config"]
        for name, more in (("text_config", _EXPERTS), ("code_predictor_config", {})):
            talker[name].update(_NARROW, **more)
            if talker[name].get("layer_types"):
                talker[name]["layer_types"] = talker[name]["layer_types"][: _NARROW["num_hidden_layers"]]
        talker["thinker_hidden_size"] = 64
        config["code2wav_config"] = asdict(TOY_CODE2WAV)
    path = Path(tempfile.mkdtemp(prefix="bench_")) / "config.json"
    path.write_text(json.dumps(config))
    return path
