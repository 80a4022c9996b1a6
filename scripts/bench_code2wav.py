"""Times Code2Wav: whole steps, their parts, the engine from feed to sink, and decoding left context again.

    python scripts/bench_code2wav.py --device cuda --out code2wav.json
    python scripts/bench_code2wav.py --device cpu --toy
Published sizes unless `--toy`, random weights. Whether the results are right is for tests/gpu to say.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.engine import Code2WavEngine
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch, Ops
from python_backends.code2wav.options import SAMPLE_RATE, Code2WavOptions, Code2WavRequest
from python_backends.code2wav.parameters import build_parameters
from python_backends.code2wav.state import StreamState
from python_backends.code2wav.weights import random_tensors
from scripts.bench.report import Report, parser
from scripts.bench.timing import eager_milliseconds, milliseconds
from scripts.bench.toy import TOY_CODE2WAV, config_file

LEFT_CONTEXT = 25


def make_model(config: Code2WavConfig, streams: int, device: str, ops: Ops) -> tuple[Code2WavModel, StreamState]:
    """Random weights, bfloat16 on CUDA and float32 on the CPU, and state for `streams` streams."""
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    parameters = build_parameters(random_tensors(config, device), config, device, dtype)
    return Code2WavModel(config, parameters, ops), StreamState(config, parameters, streams, device, dtype)


def default_ops(device: str) -> Ops:
    """What the engine takes for this device."""
    if not device.startswith("cuda"):
        return Ops()
    from python_backends.code2wav.triton_ops import TritonOps

    return TritonOps()


def codes_of(config: Code2WavConfig, streams: int, frames: int, device: str) -> torch.Tensor:
    return torch.randint(0, config.codebook_size, (streams, frames, config.num_quantizers), device=device)


def step_ms(model: Code2WavModel, state: StreamState, streams: int, frames: int, device: str) -> float:
    """A step over streams in the middle of their speech."""
    codes = codes_of(model.config, streams, frames, device)
    batch = Batch(torch.arange(streams, device=device), torch.full((streams,), 100, device=device))
    return milliseconds(lambda: model.forward(codes, batch, state), device)


def steps(model: Code2WavModel, state: StreamState, device: str) -> list[list[object]]:
    many = state.slots
    shapes = [(1, 1), (1, 4), (1, 25), (many // 8, 25), (many // 2, 25), (many, 1), (many, 4), (many, 25)]
    rows: list[list[object]] = []
    for streams, frames in shapes:
        ms = step_ms(model, state, streams, frames, device)
        rows.append([streams, frames, ms, 80 * streams * frames / ms])
    return rows


def parts(model: Code2WavModel, state: StreamState, frames: int, device: str) -> list[list[object]]:
    """Each part of a step on its own."""
    streams = state.slots
    codes = codes_of(model.config, streams, frames, device)
    batch = Batch(torch.arange(streams, device=device), torch.full((streams,), 100, device=device))
    stages = [("transformer", lambda value: model.transformer(codes, batch, state))]
    stages += [("upsample", lambda value: model.upsample(value, batch, state))]
    stages += [("first convolution", lambda value: model.entry(value, batch, state))]
    for index in range(len(model.parameters.blocks)):
        stages.append((f"block {index}", lambda value, index=index: model.block(index, value, batch, state)))
    stages.append(("last convolution", lambda value: model.waveform(value, batch, state)))
    rows, value = [], None
    for name, act in stages:
        rows.append([name, milliseconds(lambda act=act, value=value: act(value), device)])
        with torch.inference_mode():
            value = act(value)
    return [*rows, ["sum", sum(row[1] for row in rows)]]


def against_decoding_again(model: Code2WavModel, state: StreamState, device: str) -> list[list[object]]:
    """New frames only, against decoding LEFT_CONTEXT old frames with every chunk and throwing their samples away."""
    many, rows = state.slots, []
    fresh = Batch(torch.arange(many, device=device), torch.zeros(many, dtype=torch.int64, device=device))
    for chunk in (4, 25):
        codes = codes_of(model.config, many, LEFT_CONTEXT + chunk, device)
        again = milliseconds(lambda codes=codes: model.forward(codes, fresh, state), device, 5)
        ours = step_ms(model, state, many, chunk, device)
        for way, ms in (("streaming state", ours), ("decoding again", again)):
            rows.append(
                [way, chunk, ms, many * chunk * model.config.samples_per_frame / SAMPLE_RATE / ms * 1e3, ms / ours]
            )
    return rows


class Counting:
    """A sink that counts, and says when it has heard something."""

    def __init__(self) -> None:
        self.samples, self.finished, self.heard = 0, 0, threading.Event()

    def audio(self, stream_id: str, samples: np.ndarray, finish: object) -> None:
        self.samples += len(samples)
        self.finished += finish is not None
        self.heard.set()

    def failed(self, stream_id: str, error: Exception) -> None:
        raise error


def engine(config: Path, streams: int, device: str, chunks: int, frames: int) -> list[list[object]]:
    """Feed to sink: the delay of a lone first frame, and the rate of many streams fed ahead."""
    dtype = "bfloat16" if device.startswith("cuda") else "float32"
    options = Code2WavOptions(
        device, dtype, streams, load_format="dummy", frame_buckets=(1, frames), batch_buckets=(1, streams)
    )
    sink, begin = Counting(), time.perf_counter()
    made = Code2WavEngine(config, options, sink)
    start_s, delays = time.perf_counter() - begin, []
    for repeat in range(20):
        made.add(Code2WavRequest(f"first{repeat}"))
        sink.heard.clear()
        begin = time.perf_counter()
        made.feed(f"first{repeat}", np.zeros((1, made.config.num_quantizers), np.int64), finished=True)
        made.step()
        sink.heard.wait(10)
        delays.append(1e3 * (time.perf_counter() - begin))
    codes = codes_of(made.config, 1, frames, "cpu")[0].numpy()
    sink.samples, sink.finished, before = 0, 0, made.stats()["steps"]
    for stream in range(streams):
        made.add(Code2WavRequest(f"s{stream}"))
        for chunk in range(chunks):
            made.feed(f"s{stream}", codes, finished=chunk + 1 == chunks)
    begin = time.perf_counter()
    while sink.finished < streams:
        if not made.step():
            made.wait_for_work(0.01)
    seconds = time.perf_counter() - begin
    made.close()
    step = 1e3 * seconds / (made.stats()["steps"] - before)
    return [[start_s, statistics.median(delays), step, sink.samples / SAMPLE_RATE / seconds]]


def ceilings(device: str) -> list[list[object]]:
    """What the device reaches: bytes read and written by a copy, and a square product."""
    size = 8192 if device.startswith("cuda") else 1024
    source = torch.randn(16 * size, size, device=device)
    target = torch.empty_like(source)
    copy = eager_milliseconds(lambda: target.copy_(source), device)
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return [[2 * 4 * source.numel() / copy / 1e9, 2 * size**3 / eager_milliseconds(lambda: left @ right, device) / 1e9]]


def main() -> int:
    args = parser(__doc__, ("ceilings", "steps", "parts", "again", "engine")).parse_args()
    config = TOY_CODE2WAV if args.toy else Code2WavConfig()
    report, device, many = Report(args), args.device, 8 if args.toy else 64
    model, state = make_model(config, many, device, default_ops(device))
    report.part("ceilings", "Ceilings", ("copy TB/s", "bf16 product TFLOP/s"), lambda: ceilings(device))
    report.part("steps", "Steps", ("streams", "frames", "ms", "× real time"), lambda: steps(model, state, device))
    report.part("parts", f"Parts of {many} × 25 frames", ("part", "ms"), lambda: parts(model, state, 25, device))
    report.part(
        "again",
        f"{many} streams, against decoding {LEFT_CONTEXT} frames of left context again",
        ("way", "new frames", "ms", "audio s/s", "× our time"),
        lambda: against_decoding_again(model, state, device),
    )
    report.part(
        "engine",
        f"Engine, {many} streams, from feed to sink",
        ("start s", "lone first frame ms", "ms a step", "audio s/s"),
        lambda: engine(config_file(args.toy), many, device, 8 if device.startswith("cuda") else 2, 25),
    )
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
