"""A tiny Code2Wav checkpoint, transformers' model over the same weights, and a sink that remembers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.engine import Code2WavEngine
from python_backends.code2wav.options import Code2WavOptions
from python_backends.code2wav.weights import random_tensors
from python_backends.config.errors import OmniError
from python_backends.config.stage import Finish

TINY = {
    "codebook_size": 64,
    "num_quantizers": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 12,
    "decoder_dim": 32,
    "upsampling_ratios": [2, 2],
    "upsample_rates": [8, 5, 4, 3],
}


@pytest.fixture(scope="session")
def code2wav_config() -> Code2WavConfig:
    return Code2WavConfig.from_dict(TINY)


@pytest.fixture(scope="session")
def code2wav_tensors(code2wav_config) -> dict[str, torch.Tensor]:
    return random_tensors(code2wav_config, "cpu", seed=5)


@pytest.fixture(scope="session")
def code2wav_checkpoint(tmp_path_factory, code2wav_tensors) -> Path:
    directory = tmp_path_factory.mktemp("code2wav")
    (directory / "config.json").write_text(json.dumps({"code2wav_config": TINY}))
    save_file(
        {"code2wav." + name: tensor for name, tensor in code2wav_tensors.items()}, directory / "model.safetensors"
    )
    return directory


@pytest.fixture(scope="session")
def reference(code2wav_tensors):
    """The unchunked forward of transformers: codes [frames, quantizers] to float32 samples."""
    return oracle(code2wav_tensors, torch.float32)


@pytest.fixture(scope="session")
def reference_bfloat16(code2wav_tensors):
    """The same in bfloat16."""
    return oracle(code2wav_tensors, torch.bfloat16)


def oracle(tensors, dtype):
    model = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**TINY)).eval()
    model.load_state_dict(tensors, strict=True)
    model.to(dtype)

    @torch.no_grad()
    def forward(codes: np.ndarray) -> np.ndarray:
        return model(torch.as_tensor(codes).T[None])[0, 0].float().numpy()

    return forward


class RecordingSink:
    """Keeps, per stream, the chunks and how it ended; a second end or audio after the end is an error."""

    def __init__(self) -> None:
        self.chunks: dict[str, list[np.ndarray]] = {}
        self.ended: dict[str, Finish | OmniError] = {}

    def audio(self, stream_id: str, samples: np.ndarray, finish: Finish | None) -> None:
        assert stream_id not in self.ended
        self.chunks.setdefault(stream_id, []).append(samples)
        if finish is not None:
            self.ended[stream_id] = finish

    def failed(self, stream_id: str, error: OmniError) -> None:
        assert stream_id not in self.ended
        self.ended[stream_id] = error

    def waveform(self, stream_id: str) -> np.ndarray:
        return np.concatenate(self.chunks[stream_id])


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def make_engine(code2wav_checkpoint, sink):
    engines = []

    def make(**options) -> Code2WavEngine:
        options = {"max_num_seqs": 3, "batch_wait_ms": 0.0, **options}
        engines.append(Code2WavEngine(code2wav_checkpoint, Code2WavOptions(**options), sink))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def random_codes(code2wav_config):
    def make(frames: int, seed: int = 0) -> np.ndarray:
        generator = np.random.default_rng(seed)
        return generator.integers(0, code2wav_config.codebook_size, (frames, code2wav_config.num_quantizers))

    return make
