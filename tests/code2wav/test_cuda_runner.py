"""What the CUDA runner does around the device: padding, buffers in flight, delivery. Streams and events are faked."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from python_backends.code2wav import cuda_runner
from python_backends.code2wav.cuda_runner import CudaRunner
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Ops
from python_backends.code2wav.options import Code2WavOptions
from python_backends.code2wav.parameters import build_parameters
from python_backends.code2wav.state import StreamState


class InOrder:
    """A stream or an event of a device on which everything has happened already."""

    def __init__(self, *_, **__) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_event(self, event) -> None:
        pass


@pytest.fixture
def runner(monkeypatch, code2wav_config, code2wav_tensors):
    monkeypatch.setattr(cuda_runner.torch.cuda, "Stream", InOrder)
    monkeypatch.setattr(cuda_runner.torch.cuda, "Event", InOrder)
    monkeypatch.setattr(cuda_runner.torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cuda_runner.torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    parameters = build_parameters(code2wav_tensors, code2wav_config, "cpu", torch.float32)
    state = StreamState(code2wav_config, parameters, 4, "cpu", torch.float32)
    options = Code2WavOptions(max_num_seqs=4, cuda_graphs=False, max_step_frames=100)
    return CudaRunner(Code2WavModel(code2wav_config, parameters, Ops()), state, options)


def test_rows_are_padded_to_a_bucket_on_the_scratch_slot(runner, random_codes, reference, code2wav_config):
    codes, rows = np.stack([random_codes(8, seed) for seed in range(3)]), []
    runner.launch(codes, [3, 0, 2], [0, 0, 0])(lambda array: rows.extend(array.copy()))
    assert len(rows) == 3
    for row, row_codes in zip(rows, codes, strict=True):
        waveform = row[code2wav_config.startup_samples :]
        np.testing.assert_allclose(waveform, reference(row_codes), rtol=0, atol=1e-5)
    untouched = runner.state.blocks[0].units[0][1]
    assert torch.count_nonzero(untouched) == 0


def test_buffers_return_after_delivery_and_limit_the_steps_under_way(runner, random_codes, reference, code2wav_config):
    codes, heard = random_codes(12), []
    for start in range(0, 12, 4):
        deliver = runner.launch(codes[None, start : start + 4], [1], [start])
        deliver(lambda array: heard.append(array[0].copy()))
    waveform = np.concatenate(heard)[code2wav_config.startup_samples :]
    np.testing.assert_allclose(waveform, reference(codes), rtol=0, atol=1e-5)
    waiting = [runner.launch(codes[None, :1], [0], [0]) for _ in range(2)]
    assert runner._free.empty()
    for deliver in waiting:
        deliver(lambda array: None)
    runner.reserve()
    assert not runner._free.empty()
