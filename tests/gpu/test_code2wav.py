"""Code2Wav on a GPU: kernels at the published sizes, and the whole engine with its graphs and pinned copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.engine import Code2WavEngine
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch
from python_backends.code2wav.options import Code2WavOptions, Code2WavRequest
from python_backends.code2wav.parameters import build_parameters
from python_backends.code2wav.plan import FLOAT32_PLAN, H200_PLAN
from python_backends.code2wav.state import StreamState
from python_backends.code2wav.triton_ops import TritonOps
from python_backends.code2wav.weights import random_tensors
from tests.gpu.conftest import DEVICE

CUTS = (1, 4, 25, 2, 16, 8, 25, 7)
FRAMES = 90
PLANS = {torch.float32: FLOAT32_PLAN, torch.bfloat16: H200_PLAN}


class Published:
    """Random weights of the published sizes, and transformers' unchunked forward over them."""

    def __init__(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.config = Code2WavConfig()
        self.tensors = random_tensors(self.config, DEVICE)
        drawn = np.random.default_rng(3).integers(0, self.config.codebook_size, (2, FRAMES, self.config.num_quantizers))
        self.codes = torch.as_tensor(drawn, device=DEVICE)
        self.exact = self.unchunked(torch.float32)

    @torch.no_grad()
    def unchunked(self, dtype: torch.dtype) -> torch.Tensor:
        config = self.config
        values = {name: getattr(config, name) for name in config.__dataclass_fields__ if name != "rope_theta"}
        rope = {"rope_type": "default", "rope_theta": config.rope_theta}
        with torch.device(DEVICE):
            model = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**values, rope_parameters=rope))
        model.load_state_dict(self.tensors, strict=True)
        return model.to(dtype).eval()(self.codes.transpose(1, 2))[:, 0].float()

    @torch.no_grad()
    def streamed(self, dtype: torch.dtype) -> torch.Tensor:
        """Both streams cut as CUTS, the second started one chunk late, through the kernels."""
        parameters = build_parameters(self.tensors, self.config, DEVICE, dtype)
        state = StreamState(self.config, parameters, 2, DEVICE, dtype)
        model = Code2WavModel(self.config, parameters, TritonOps(PLANS[dtype]))
        heard: tuple[list, list] = ([], [])
        positions, step = [0, 0], 0
        while min(positions) < FRAMES:
            frames = CUTS[step % len(CUTS)]
            active = [row for row in (0, 1) if step >= row and positions[row] + frames <= FRAMES]
            step += 1
            if not active:
                frames, active = 1, [row for row in (0, 1) if positions[row] < FRAMES]
            chunk = torch.stack([self.codes[row, positions[row] : positions[row] + frames] for row in active])
            at = [torch.tensor(values, device=DEVICE) for values in (active, [positions[row] for row in active])]
            for row, samples in zip(active, model.forward(chunk, Batch(*at), state), strict=True):
                heard[row].append(samples if positions[row] else samples[self.config.startup_samples :])
                positions[row] += frames
        return torch.stack([torch.cat(rows) for rows in heard])


@pytest.fixture(scope="module")
def model() -> Published:
    return Published()


def test_float32_kernels_equal_the_unchunked_forward_of_transformers(model):
    assert model.exact.std() > 0.01
    assert (model.streamed(torch.float32) - model.exact).abs().max() < 1e-4


def test_bfloat16_kernels_are_no_worse_than_transformers_in_bfloat16(model):
    errors = [
        ((waveform - model.exact).norm() / model.exact.norm()).item()
        for waveform in (model.streamed(torch.bfloat16), model.unchunked(torch.bfloat16))
    ]
    assert errors[0] < 1.1 * errors[1]


def speak(engine: Code2WavEngine, streams: dict[str, np.ndarray], cuts: tuple[int, ...]) -> None:
    """Feed all streams in chunks of `cuts` frames, again and again, and step until they have ended."""
    for name in streams:
        engine.add(Code2WavRequest(name))
    fed = 0
    for turn in range(max(len(codes) for codes in streams.values())):
        size = cuts[turn % len(cuts)]
        for name, codes in streams.items():
            if fed < len(codes):
                engine.feed(name, codes[fed : fed + size], finished=fed + size >= len(codes))
        fed += size
        while engine.step():
            pass
    while engine.stats()["open"]:
        if not engine.step():
            engine.wait_for_work(0.05)


@pytest.mark.parametrize("graphs", [True, False], ids=["captured", "eager"])
def test_the_engine_in_float32_equals_transformers_on_the_cpu(
    code2wav_checkpoint, sink, random_codes, reference, graphs
):
    """Batch buckets with padding rows, several steps under way, samples copied behind them."""
    options = Code2WavOptions(device=DEVICE, max_num_seqs=6, batch_wait_ms=0.0, cuda_graphs=graphs)
    engine = Code2WavEngine(code2wav_checkpoint, options, sink)
    streams = {f"s{number}": random_codes(40 + number, number) for number in range(5)}
    speak(engine, streams, (1, 4, 8, 16))
    engine.close()
    for name, codes in streams.items():
        np.testing.assert_allclose(sink.waveform(name), reference(codes), rtol=0, atol=1e-4)


def test_batch_invariant_samples_are_those_of_a_stream_alone(code2wav_checkpoint, sink, random_codes):
    options = dict(device=DEVICE, dtype="bfloat16", max_num_seqs=6, frame_buckets=(1,), max_step_frames=1)
    engine = Code2WavEngine(code2wav_checkpoint, Code2WavOptions(**options), sink)
    streams = {f"s{number}": random_codes(20, number) for number in range(5)}
    speak(engine, streams, (4, 1))
    speak(engine, {"alone": random_codes(20, 3)}, (20,))
    engine.close()
    assert np.array_equal(sink.waveform("alone"), sink.waveform("s3"))
