"""Whole steps, their parts, the peers' way of decoding chunks, and the engine from feed to sink."""

from __future__ import annotations

import statistics
import threading
import time

import numpy as np
import torch

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.engine import Code2WavEngine
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch
from python_backends.code2wav.options import SAMPLE_RATE, Code2WavOptions, Code2WavRequest
from python_backends.code2wav.state import StreamState
from scripts.code2wav_bench.timing import median_ms

LEFT_CONTEXT = 25


def floating_point_per_frame(config: Code2WavConfig) -> float:
    """Multiply-adds of one frame, times two; attention and depthwise convolutions left out."""
    hidden, key_value = config.hidden_size, config.num_key_value_heads * config.head_dim
    query = config.num_attention_heads * config.head_dim
    layer = hidden * (2 * query + 2 * key_value) + 3 * hidden * config.intermediate_size
    total, rows = float(config.num_hidden_layers * layer), 1
    for ratio in config.upsampling_ratios:
        total += rows * ratio * hidden * hidden
        rows *= ratio
        total += rows * 8 * hidden * hidden
    width = config.decoder_dim
    total += rows * 7 * hidden * width
    for rate in config.upsample_rates:
        total += rows * width * (width // 2) * 2 * rate
        rows, width = rows * rate, width // 2
        total += rows * 3 * 8 * width * width
    return 2 * (total + rows * 7 * width)


def codes_for(config: Code2WavConfig, streams: int, frames: int, device: str) -> torch.Tensor:
    return torch.randint(0, config.codebook_size, (streams, frames, config.num_quantizers), device=device)


class Stepper:
    """A step of fixed shape over streams in the middle of their speech, as a captured graph on CUDA."""

    def __init__(self, model: Code2WavModel, state: StreamState, streams: int, frames: int, device: str) -> None:
        self._model, self._state = model, state
        self._codes = codes_for(model.config, streams, frames, device)
        self._batch = Batch(torch.arange(streams, device=device), torch.full((streams,), 100, device=device))
        self._graph = None
        if device.startswith("cuda"):
            self._forward()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._samples = self._forward()

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._forward()

    def _forward(self) -> torch.Tensor:
        return self._model.forward(self._codes, self._batch, self._state)


def part_times(model: Code2WavModel, state: StreamState, streams: int, frames: int, device: str) -> dict[str, float]:
    """Milliseconds of each part of a step."""
    codes = codes_for(model.config, streams, frames, device)
    batch = Batch(torch.arange(streams, device=device), torch.full((streams,), 100, device=device))
    times, value = {}, None
    with torch.no_grad():
        hidden = model.transformer(codes, batch, state)
        times["transformer"] = median_ms(lambda: model.transformer(codes, batch, state), device, 5)
        value = model.upsample(hidden, batch, state)
        times["upsample"] = median_ms(lambda: model.upsample(hidden, batch, state), device, 5)
        wide = value
        value = model.entry(wide, batch, state)
        times["entry"] = median_ms(lambda: model.entry(wide, batch, state), device, 5)
        for index in range(len(model.parameters.blocks)):
            before = value
            times[f"block{index}"] = median_ms(
                lambda index=index, before=before: model.block(index, before, batch, state), device, 5
            )
            value = model.block(index, before, batch, state)
        times["waveform"] = median_ms(lambda: model.waveform(value, batch, state), device, 5)
    return times


def redecode_ms(forward, config: Code2WavConfig, streams: int, new_frames: int, device: str) -> float:
    """The peers' way: decode `LEFT_CONTEXT` old frames with the new ones and throw their samples away."""
    codes = codes_for(config, streams, LEFT_CONTEXT + new_frames, device)
    with torch.no_grad():
        return median_ms(lambda: forward(codes), device, 5)


class _CountingSink:
    def __init__(self, engine_ready: threading.Event) -> None:
        self.samples, self.finished, self.heard = 0, 0, engine_ready

    def audio(self, stream_id, samples, finish) -> None:
        self.samples += len(samples)
        self.finished += finish is not None
        self.heard.set()

    def failed(self, stream_id, error) -> None:
        raise error


def engine_figures(checkpoint: str, options: Code2WavOptions, chunks: int, chunk_frames: int) -> dict[str, float]:
    """Feed to sink: the delay of a lone first frame, and the rate of `max_num_seqs` streams fed ahead."""
    heard = threading.Event()
    sink = _CountingSink(heard)
    begin = time.perf_counter()
    engine = Code2WavEngine(checkpoint, options, sink)
    figures = {"start_s": time.perf_counter() - begin, "first_frame_ms": _first_frame_ms(engine, heard, 20)}
    generator, config = np.random.default_rng(0), engine.config
    codes = generator.integers(0, config.codebook_size, (chunk_frames, config.num_quantizers))
    sink.samples = sink.finished = 0
    for stream in range(options.max_num_seqs):
        engine.add(Code2WavRequest(f"s{stream}"))
        for chunk in range(chunks):
            engine.feed(f"s{stream}", codes, finished=chunk + 1 == chunks)
    steps_before = engine.stats()["steps"]
    begin = time.perf_counter()
    while sink.finished < options.max_num_seqs:
        if not engine.step():
            engine.wait_for_work(0.01)
    seconds = time.perf_counter() - begin
    engine.close()
    figures["audio_s_per_s"] = sink.samples / SAMPLE_RATE / seconds
    figures["step_ms"] = 1000 * seconds / (engine.stats()["steps"] - steps_before)
    return figures


def _first_frame_ms(engine: Code2WavEngine, heard: threading.Event, repeats: int) -> float:
    frame, delays = np.zeros((1, engine.config.num_quantizers), np.int64), []
    for repeat in range(repeats):
        engine.add(Code2WavRequest(f"first{repeat}"))
        heard.clear()
        begin = time.perf_counter()
        engine.feed(f"first{repeat}", frame, finished=True)
        engine.step()
        heard.wait(10)
        delays.append(1000 * (time.perf_counter() - begin))
    return statistics.median(delays)
