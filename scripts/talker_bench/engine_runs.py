"""The whole engine: output paths against each other, GPU idle between steps, agreement across batch sizes."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule, Finish
from python_backends.talker.engine import TalkerEngine
from python_backends.talker.model.shapes import TokenIds, read_shape
from python_backends.talker.options import TalkerOptions
from python_backends.talker.request import TalkerRequest, TextChunk

PROMPT_ROWS = 128
TEXT_IDS = 40
TRACED_STEPS = 12


@dataclass
class HashingSink:
    """Hashes each stream's codes."""

    hashes: dict[str, object] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    first_chunk: dict[str, float] = field(default_factory=dict)

    def reset(self) -> None:
        for record in (self.hashes, self.ended, self.first_chunk):
            record.clear()

    def codes(self, stream_id: str, codes: np.ndarray, finish: Finish | None) -> None:
        self.first_chunk.setdefault(stream_id, time.perf_counter())
        self.hashes.setdefault(stream_id, hashlib.sha256()).update(codes.astype("<i4").tobytes())
        if finish is not None:
            self.ended.add(stream_id)

    def progress(self, stream_id: str, frames: int) -> None:
        pass

    def failed(self, stream_id: str, error: Exception) -> None:
        self.ended.add(stream_id)
        print(f"stream {stream_id} failed: {error}", flush=True)


def open_streams(
    engine: TalkerEngine, ids: TokenIds, numbers: list[int], frames: int, schedule: ChunkSchedule | None = None
) -> None:
    """Open streams that speak exactly `frames` frames each, with a prompt of 128 rows and a seed of their own."""
    schedule = schedule or ChunkSchedule()
    for number in numbers:
        user = (np.arange(PROMPT_ROWS - 8 - 4) * 7 + number) % 1000 + 2000
        prompt = np.array([ids.im_start, ids.user, 198, *user, ids.tts_pad, ids.im_start, ids.assistant, 198])
        text = (np.arange(TEXT_IDS) * 11 + number) % 1000 + 3000
        sampling = TalkerSampling(max_tokens=frames, ignore_eos=True)
        engine.add(TalkerRequest(str(number), "ethan", sampling, 77 + number, schedule))
        engine.feed(str(number), TextChunk(text, True, prompt))


def run_all(engine: TalkerEngine, sink: HashingSink, count: int) -> float:
    """Step until `count` streams have ended; give the seconds it took."""
    started = time.perf_counter()
    while len(sink.ended) < count:
        if not engine.step():
            engine.wait_for_work(0.05)
    return time.perf_counter() - started


def idle_between_steps(events: list[tuple[float, float, str]]) -> dict[str, float]:
    """GPU idle time, in microseconds, from a step's last draw to the next step's embedding kernel.

    `events`: (start, end, name) of device work in microseconds, ordered by start.
    """
    gaps, last_draw = [], None
    for index, (_, _, name) in enumerate(events):
        if "_draw_kernel" in name:
            last_draw = index
        elif "_embed_kernel" in name and last_draw is not None:
            window = events[last_draw : index + 1]
            idle, busy_until = 0.0, window[0][1]
            for begin, finish, _ in window[1:]:
                idle += max(0.0, begin - busy_until)
                busy_until = max(busy_until, finish)
            gaps.append(idle)
            last_draw = None
    if not gaps:
        return {}
    return {
        "idle_us_median": round(float(np.median(gaps)), 1),
        "idle_us": [round(gap, 1) for gap in gaps],
    }


def _trace(engine: TalkerEngine) -> dict[str, float]:
    # The first profile of a process starts CUPTI, which costs the step under way half a millisecond.
    for steps in (2, TRACED_STEPS):
        before = engine.stats()["prefill_rows"]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(steps):
                while not engine.step():
                    engine.wait_for_work(0.05)
            torch.cuda.synchronize()
    events = []
    for event in profile.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns() > 0:
            events.append((event.start_ns() / 1e3, (event.start_ns() + event.duration_ns()) / 1e3, event.name()))
    events.sort()
    kernels: dict[str, list[float]] = {}
    for start, end, name in events:
        kernels.setdefault(name.split("(")[0][:60], []).append(end - start)
    ranked = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:14]
    result: dict = idle_between_steps(events)
    result["prompt_rows_in_trace"] = engine.stats()["prefill_rows"] - before
    result["kernels_us_a_step"] = {
        name: [round(sum(times) / TRACED_STEPS, 1), round(len(times) / TRACED_STEPS, 1)] for name, times in ranked
    }
    return result


def paths(config: Path, options: TalkerOptions, frames: int) -> dict:
    """Asynchronous and synchronous output: wall time a step with full batches, and whether the codes are the same."""
    table: dict = {}
    digests, ids = [], read_shape(config).ids
    for asynchronous in (True, False):
        sink = HashingSink()
        engine = TalkerEngine(config, replace(options, async_output=asynchronous), sink)
        print(engine.guards(), flush=True)
        count = options.max_num_seqs
        open_streams(engine, ids, list(range(count)), 8)
        run_all(engine, sink, count)
        sink.reset()
        begun = time.perf_counter()
        open_streams(engine, ids, list(range(count)), frames)
        prefilled = engine.stats()["prefill_rows"] + count * PROMPT_ROWS
        while engine.stats()["prefill_rows"] < prefilled:
            engine.step()
        engine.join()
        before = engine.stats()["steps"]
        seconds = run_all(engine, sink, count)
        steps = engine.stats()["steps"] - before
        row = {
            "streams": count,
            "steps": steps,
            "wall_ms_a_step": round(seconds / steps * 1e3, 3),
            "first_chunk_ms_last_stream": round((max(sink.first_chunk.values()) - begun) * 1e3, 1),
            "rtf": round((time.perf_counter() - begun) / (frames * 0.08), 4),
        }
        digests.append({stream: value.hexdigest() for stream, value in sink.hashes.items()})
        if asynchronous and torch.device(options.device).type == "cuda":
            sink.reset()
            open_streams(engine, ids, list(range(count)), TRACED_STEPS + 20)
            for _ in range(8):
                engine.step()
            row.update(_trace(engine))
            run_all(engine, sink, count)
        engine.close()
        del engine
        name = "asynchronous" if asynchronous else "synchronous"
        table[name] = row
        print(f"{name}: {row}", flush=True)
    table["same_codes"] = digests[0] == digests[1]
    return table


def agreement(config: Path, options: TalkerOptions, frames: int) -> dict:
    """Share of sampled requests whose codes are the same alone and in a full batch, plain and batch-invariant."""
    table: dict = {"frames": frames}
    count, ids = options.max_num_seqs, read_shape(config).ids
    alone = list(range(min(count, 16)))
    for invariant in (False, True):
        sink = HashingSink()
        engine = TalkerEngine(config, replace(options, batch_invariant=invariant), sink)
        open_streams(engine, ids, list(range(count)), frames)
        run_all(engine, sink, count)
        together = {stream: value.hexdigest() for stream, value in sink.hashes.items()}
        same, seconds, steps = 0, 0.0, 0
        for number in alone:
            sink.reset()
            before = engine.stats()["steps"]
            open_streams(engine, ids, [number], frames)
            seconds += run_all(engine, sink, 1)
            steps += engine.stats()["steps"] - before
            same += sink.hashes[str(number)].hexdigest() == together[str(number)]
        engine.close()
        del engine
        name = "batch_invariant" if invariant else "plain"
        table[name] = {"agree": f"{same}/{len(alone)}", "wall_ms_a_step_alone": round(seconds / steps * 1e3, 3)}
        print(f"agreement {name}: {table[name]}", flush=True)
    return table
