"""Times the Talker: a step by batch and part, prefill, and the engine with its two output paths.

    python scripts/bench_talker.py --device cuda --batches 1 2 4 8 16 32 64 128 --out talker.json
    python scripts/bench_talker.py --device cpu --toy --batches 1 2
Published sizes unless `--toy`, random weights. Whether the results are right is for tests/gpu to say.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns about each rope section of every config

from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import Finish
from python_backends.talker.engine import TalkerEngine
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.slots import sampling_columns
from python_backends.talker.options import TalkerOptions
from python_backends.talker.prompt import PrefillPart, build_prompt
from python_backends.talker.request import TalkerRequest, TextChunk
from python_backends.talker.runner import SlotStart, TalkerRunner
from python_backends.talker.step import TalkerStep
from scripts.bench.report import Report, parser
from scripts.bench.timing import eager_milliseconds, milliseconds
from scripts.bench.toy import config_file

PROMPT_ROWS = 128
TRACED_STEPS = 12
STEP_PARTS = ("step", "backbone", "predictor with sampling", "sampling")


def start_all(runner: TalkerRunner) -> None:
    """Give every slot default sampling settings and a seed of its own."""
    columns = [sampling_columns(TalkerSampling(), 1000 + slot, 0.0) for slot in range(runner.buffers.count)]
    runner.start_slots([SlotStart(slot, floats, ints) for slot, (floats, ints) in enumerate(columns)])


def step_times(runner: TalkerRunner, step: TalkerStep, batch: int, context: int) -> list[float]:
    """Milliseconds of STEP_PARTS for rows that all have `context` rows before them, each part a graph of its own."""
    rows = np.array([(slot, 1000 + slot, context, 200) for slot in range(batch)], dtype=np.int64)
    control = torch.from_numpy(np.ascontiguousarray(rows.T)).to(runner.device)
    slots, _, cache_rows, frame = control.unbind(0)
    buffers, shape, device = runner.buffers, runner.shape, runner.device
    dtype = runner.weights.codec_head.dtype

    def normal(width: int) -> torch.Tensor:
        return torch.randn(batch, width, device=device).to(dtype)

    hidden, logits, first_logits = (
        normal(shape.backbone.hidden),
        normal(shape.predictor.vocab),
        normal(shape.backbone.vocab),
    )
    settings = RowSettings(buffers.floats.index_select(0, slots), buffers.ints.index_select(0, slots), frame)
    first = (torch.zeros(batch, dtype=torch.int64, device=device), hidden)
    delta, longest = settings.float_of("position_delta"), context + 1 if device.type == "cpu" else buffers.context

    def sampling() -> None:
        step.kernels.draw_first(first_logits, settings, buffers.seen, slots)
        for group in range(1, shape.groups):
            step.kernels.draw(logits, settings, group)

    acts = (
        lambda: step(control, longest),
        lambda: step.backbone(hidden, slots, cache_rows, delta, longest),
        lambda: step.predict(hidden, first, settings),
        sampling,
    )
    return [milliseconds(act, device) for act in acts]


def prompt_ids(runner_shape, number: int) -> np.ndarray:
    """Ids of a text prompt that takes PROMPT_ROWS rows before the first frame."""
    ids = runner_shape.ids
    user = (np.arange(PROMPT_ROWS - 12) * 7 + number) % 1000 + 2000
    return np.array([ids.im_start, ids.user, 198, *user, ids.tts_pad, ids.im_start, ids.assistant, 198])


def prefill(runner: TalkerRunner, prompts: int) -> list[list[object]]:
    """Wall milliseconds for prompts at once and in the engine's portions, host work included."""
    speaker = next(iter(runner.shape.speakers.values()))
    prompt = build_prompt(prompt_ids(runner.shape, 0), None, speaker, runner.shape)
    if runner.device.type == "cuda":
        runner.capture_prefill(torch.cuda.graph_pool_handle())
    portion = max(1, runner.options.max_prefill_rows // prompt.rows)
    every = [PrefillPart(slot, prompt, 0, prompt.rows) for slot in range(prompts)]

    def in_portions() -> None:
        for start in range(0, prompts, portion):
            runner.prefill(every[start : start + portion])

    acts = {
        "at once": lambda: runner.prefill(every),
        "in portions": in_portions,
        "one portion": lambda: runner.prefill(every[:portion]),
        "one prompt": lambda: runner.prefill(every[:1]),
    }
    return [[name, prompts, prompt.rows, eager_milliseconds(act, runner.device)] for name, act in acts.items()]


class Ends:
    """A sink that knows when each stream spoke first, and which have ended."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.ended: set[str] = set()

    def codes(self, stream_id: str, codes: np.ndarray, finish: Finish | None) -> None:
        self.first.setdefault(stream_id, time.perf_counter())
        if finish is not None:
            self.ended.add(stream_id)

    def failed(self, stream_id: str, error: Exception) -> None:
        raise error


def speak(engine: TalkerEngine, shape, sink: Ends, count: int, frames: int) -> None:
    """Open `count` streams that speak `frames` frames each."""
    sink.first.clear()
    sink.ended.clear()
    sampling = TalkerSampling(max_tokens=frames, ignore_eos=True)
    for number in range(count):
        engine.add(TalkerRequest(str(number), "ethan", sampling, 77 + number))
        engine.feed(
            str(number), TextChunk((np.arange(40) * 11 + number) % 1000 + 3000, True, prompt_ids(shape, number))
        )


def run_until(engine: TalkerEngine, done) -> None:
    while not done():
        if not engine.step():
            engine.wait_for_work(0.05)


def idle_between_steps(engine: TalkerEngine) -> float | None:
    """Median GPU idle time, in microseconds, from a step's last draw to the next step's embedding kernel."""
    for steps in (2, TRACED_STEPS):  # the first profile of a process starts CUPTI, which costs half a millisecond
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(steps):
                while not engine.step():
                    engine.wait_for_work(0.05)
            torch.cuda.synchronize()
    work = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns() > 0
    )
    gaps, busy_until, idle = [], None, 0
    for begin, end, name in work:
        if busy_until is not None:
            idle += max(0, begin - busy_until)
            if "_embed_kernel" in name:
                gaps.append(idle / 1e3)
                busy_until = None
            else:
                busy_until = max(busy_until, end)
        if "_draw_kernel" in name:
            busy_until, idle = end, 0
    return float(np.median(gaps)) if gaps else None


def engine_times(config: Path, options: TalkerOptions, frames: int) -> list[list[object]]:
    """Both output paths with full batches: wall time of a step, the last stream's first chunk, real-time factor."""
    rows: list[list[object]] = []
    count = options.max_num_seqs
    for name, asynchronous in (("asynchronous", True), ("synchronous", False)):
        sink = Ends()
        engine = TalkerEngine(config, replace(options, async_output=asynchronous), sink)
        shape = engine._runner.shape
        speak(engine, shape, sink, count, 8)
        run_until(engine, lambda sink=sink: len(sink.ended) == count)
        begin = time.perf_counter()
        prompts_done = engine.stats()["prefill_rows"] + count * PROMPT_ROWS
        speak(engine, shape, sink, count, frames)
        run_until(engine, lambda engine=engine, done=prompts_done: engine.stats()["prefill_rows"] >= done)
        engine.join()
        steps, decoding = engine.stats()["steps"], time.perf_counter()
        run_until(engine, lambda sink=sink: len(sink.ended) == count)
        seconds = time.perf_counter() - decoding
        row: list[object] = [name, count, 1e3 * seconds / (engine.stats()["steps"] - steps)]
        row += [1e3 * (max(sink.first.values()) - begin), (time.perf_counter() - begin) / (frames * 0.08)]
        idle = None
        if asynchronous and torch.device(options.device).type == "cuda":
            speak(engine, shape, sink, count, TRACED_STEPS + 40)
            run_until(engine, lambda sink=sink: len(sink.first) == count)
            idle = idle_between_steps(engine)
        engine.close()
        rows.append([*row, idle if idle is not None else ""])
    return rows


def device_parts(report: Report, runner: TalkerRunner, batches: list[int], context: int) -> None:
    """What needs no engine; the runner's memory is free again afterwards."""
    start_all(runner)
    report.part(
        "steps",
        f"Talker, {context} rows of context, ms",
        ("batch", *STEP_PARTS),
        lambda: [[batch, *step_times(runner, runner.step, batch, context)] for batch in batches],
    )
    count = min(64, max(batches))
    report.part("prefill", "Prefill", ("how", "prompts", "rows each", "ms"), lambda: prefill(runner, count))


def main() -> int:
    arguments = parser(__doc__, ("steps", "prefill", "engine"))
    arguments.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 128])
    arguments.add_argument("--context", type=int, default=1000, help="rows of context of every stream")
    arguments.add_argument("--frames", type=int, default=60, help="frames a stream of the engine speaks")
    args = arguments.parse_args()
    config, dtype = config_file(args.toy), "bfloat16" if args.device.startswith("cuda") else "float32"
    options = TalkerOptions(args.device, dtype, max(args.batches), 2048, load_format="dummy", cuda_graphs=False)
    report, count = Report(args), min(64, max(args.batches))
    device_parts(report, TalkerRunner(config, options), args.batches, args.context)
    report.part(
        "engine",
        "Engine",
        ("output", "streams", "wall ms a step", "ms to the last first chunk", "real-time factor", "GPU idle µs"),
        lambda: engine_times(config, replace(options, cuda_graphs=True, max_num_seqs=count), args.frames),
    )
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
