"""Sizes of the Code2Wav model, read from a checkpoint's `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path


@dataclass(frozen=True)
class Code2WavConfig:
    """Sizes of Code2Wav. A frame is one row of `num_quantizers` codes, 80 ms of audio at the published sizes.

    Raises ValueError for a model that the streaming decoder cannot run.
    """

    codebook_size: int = 2048
    num_quantizers: int = 16
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 8
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 64
    sliding_window: int = 72
    upsampling_ratios: tuple[int, ...] = (2, 2)
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    decoder_dim: int = 1536
    max_position_embeddings: int = 8000
    rms_norm_eps: float = 1e-5
    layer_scale_initial_scale: float = 0.01
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        if self.sliding_window < 2:
            raise ValueError(f"sliding_window must be at least 2, got {self.sliding_window}")
        rows = prod(self.upsampling_ratios)
        for index, rate in enumerate(self.upsample_rates):
            rows *= rate
            if self.startup_rows[index] > rows:
                raise ValueError("upsampling too small: the decoder's start-up would outlast the first frame")

    @property
    def samples_per_frame(self) -> int:
        """Samples that every frame but the first adds (1920 at the published sizes)."""
        return prod(self.upsampling_ratios) * prod(self.upsample_rates)

    @property
    def startup_rows(self) -> tuple[int, ...]:
        """Rows after each decoder block, counted from the stream's start, that the full forward never has.

        A transposed convolution of kernel 2r and stride r is trimmed by r rows left and right, so its n-th group of r
        rows needs inputs n and n-1: the first input of a stream yields nothing and the last one leaves nothing behind.
        """
        rows, result = 0, []
        for rate in self.upsample_rates:
            rows = (rows + 1) * rate
            result.append(rows)
        return tuple(result)

    @property
    def startup_samples(self) -> int:
        """Samples by which the whole waveform is shorter than frames × `samples_per_frame` (555)."""
        return self.startup_rows[-1] if self.upsample_rates else 0

    def samples(self, frames: int) -> int:
        """Length of the whole waveform of `frames` frames."""
        return frames * self.samples_per_frame - self.startup_samples if frames else 0

    @classmethod
    def from_dict(cls, values: dict) -> Code2WavConfig:
        """Build from the `code2wav_config` object. Raises ValueError for features this decoder lacks."""
        rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ValueError(f"code2wav_config: rope type {rope!r} is not supported")
        if values.get("attention_bias", False):
            raise ValueError("code2wav_config: attention_bias is not supported")
        if values.get("hidden_act", "silu") != "silu":
            raise ValueError(f"code2wav_config: hidden_act {values['hidden_act']!r} is not supported")
        known = {name: values[name] for name in cls.__dataclass_fields__ if values.get(name) is not None}
        for name in ("upsampling_ratios", "upsample_rates"):
            if name in known:
                known[name] = tuple(known[name])
        heads = known.get("num_attention_heads", cls.num_attention_heads)
        known.setdefault("head_dim", known.get("hidden_size", cls.hidden_size) // heads)
        known.setdefault("rope_theta", rope.get("rope_theta", cls.rope_theta))
        return cls(**known)

    @classmethod
    def from_checkpoint(cls, checkpoint: str | Path) -> Code2WavConfig:
        """Read `code2wav_config` from a checkpoint directory, or from the JSON file itself."""
        path = Path(checkpoint)
        path = path / "config.json" if path.is_dir() else path
        return cls.from_dict(json.loads(path.read_text(encoding="utf-8"))["code2wav_config"])
