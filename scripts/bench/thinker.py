"""One vLLM core, stepped by hand: time to first token, step time, prefill with and without hidden rows."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from python_backends.config.sampling import ThinkerSampling
from python_backends.thinker.delivery import Stream
from python_backends.thinker.detokenizer import Detokenizer
from python_backends.thinker.media.loader import LoadedMedia
from python_backends.thinker.options import ThinkerOptions
from python_backends.thinker.request import ThinkerRequest
from python_backends.thinker.rows import RowCollector
from python_backends.thinker.vllm_core import VllmCore, preload

AUDIO_TOKENS_PER_SECOND = 13
SAMPLE_RATE = 16000


@dataclass
class Bench:
    """`rows` by stream as they are complete; times are seconds."""

    options: ThinkerOptions
    core: VllmCore = field(init=False)
    collector: RowCollector = field(init=False)
    started_s: float = field(init=False)
    count: int = 0
    rows: dict[str, tuple[float, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        begin = time.perf_counter()
        self.collector = RowCollector()
        preload(self.options)
        self.core = VllmCore(self.options, self.collector.receive)
        self.started_s = time.perf_counter() - begin

    def add(self, engine_input: Any, max_tokens: int, positions: np.ndarray | None = None) -> str:
        """Queue a request; with `positions` its rows are captured. The prefix cache is not read in either case."""
        self.count += 1
        key = f"bench/{self.count}"
        params = self.core.sampling_params(ThinkerSampling(max_tokens=max_tokens, ignore_eos=True), 0)
        params.skip_reading_prefix_cache = True
        if positions is not None:
            self.core.capture(params, key)
            self.collector.expect(key, positions, lambda rows: self.rows.update({key: (time.perf_counter(), rows)}))
        stream = Stream(key, ThinkerRequest(key, [], ThinkerSampling()), Detokenizer(self.core.token_bytes))
        self.core.add(stream, engine_input, params)
        return key

    def run(self, until_first: bool = False) -> dict[str, list[float]]:
        """Step until nothing is left (or every stream has its first id); times of each stream's ids."""
        times: dict[str, list[float]] = {}
        waiting = set(self.core.streams)
        while self.core.running:
            for key, ids, reason, *_ in self.core.step():
                times.setdefault(key, []).extend([time.perf_counter()] * len(ids))
                waiting.discard(key)
                if reason is not None:
                    del self.core.streams[key]
            if until_first and not waiting:
                for stream in list(self.core.streams.values()):
                    self.core.abort(stream)
                break
        return times

    def wait_rows(self, key: str, timeout: float = 30.0) -> tuple[float, np.ndarray]:
        deadline = time.perf_counter() + timeout
        while key not in self.rows:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"no rows for {key}")
            time.sleep(0.0005)
        return self.rows.pop(key)

    def text(self, tokens: int, seed: int) -> Any:
        ids = np.random.default_rng(seed).integers(0, 256, tokens).tolist()
        return self.core.text_input(ids)

    def media(self, text: str, media: LoadedMedia) -> Any:
        return self.core.media_prompt(self.core.prompts.ids(text), media, f"bench/{self.count}")


def first_token_ms(bench: Bench, prompt_tokens: int, repeats: int) -> float:
    """Time from adding one request to its first id."""
    found = []
    for at in range(repeats):
        prompt = bench.text(prompt_tokens, seed=at)
        begin = time.perf_counter()
        key = bench.add(prompt, 2)
        found.append(bench.run(until_first=True)[key][0] - begin)
    return 1e3 * statistics.median(found)


def step_ms(bench: Bench, batch: int, prompt_tokens: int, steps: int) -> float:
    """Median time between the ids of a stream, all of `batch` decoding; the first steps, with prefill, left out."""
    keys = [bench.add(bench.text(prompt_tokens, seed=at), steps) for at in range(batch)]
    times = bench.run()
    gaps = [np.diff(times[key])[steps // 4 :] for key in keys]
    return 1e3 * float(np.median(np.concatenate(gaps)))


def prefill_ms(bench: Bench, tokens: int, repeats: int, capture: bool) -> dict[str, float]:
    """An audio prompt of about `tokens`: time to its first id without and with rows taken, and until those are there.

    The encoder's output is cached by the first run, so what is timed is the language model's prefill. Runs with and
    without rows alternate.
    """
    seconds = tokens // AUDIO_TOKENS_PER_SECOND
    media = LoadedMedia(audios=[_noise(seconds)])
    prompt = bench.media(_turn("<|audio_start|><|audio_pad|><|audio_end|>"), media)
    plain, taken, ready = [], [], []
    for at in range(2 * repeats + 2):
        with_rows = capture and at % 2 == 1
        begin = time.perf_counter()
        key = bench.add(prompt.engine_input, 2, prompt.positions if with_rows else None)
        first = bench.run(until_first=True)[key][0] - begin
        arrived = bench.wait_rows(key)[0] - begin if with_rows else None
        if at >= 2:
            (taken if with_rows else plain).append(first)
            if arrived is not None:
                ready.append(arrived)
    result = {"tokens": len(prompt.ids), "first_id_ms": 1e3 * statistics.median(plain)}
    if capture:
        result |= {
            "first_id_with_rows_ms": 1e3 * statistics.median(taken),
            "rows_ready_ms": 1e3 * statistics.median(ready),
            "rows_cost_percent": 100 * (statistics.median(taken) / statistics.median(plain) - 1),
        }
    return result


def check_rows(bench: Bench) -> dict[str, Any]:
    """Rows of one prompt alone (inside a CUDA graph where there are any), beside a long prefill (outside), and by the
    synchronous path: the first two close, the last bit-equal to the first.
    """
    media = LoadedMedia(audios=[_noise(4)], images=[_picture(96, 96)])
    text = "<|audio_start|><|audio_pad|><|audio_end|><|vision_start|><|image_pad|><|vision_end|>"
    prompt = bench.media(_turn(text), media)

    def take(beside: int = 0) -> np.ndarray:
        if beside:
            bench.add(bench.text(beside, seed=99), 2)
        key = bench.add(prompt.engine_input, 2, prompt.positions)
        bench.run()
        return bench.wait_rows(key)[1]

    take()
    alone, again, beside = take(), take(), take(beside=2500)
    taker = bench.core.taker()
    was, taker.synchronous = taker.synchronous, not taker.synchronous
    other = take()
    taker.synchronous = was
    scale = float(np.abs(alone).max())
    return {
        "rows": list(alone.shape),
        "path": "synchronous" if was else "asynchronous",
        "finite": bool(np.isfinite(alone).all()),
        "largest": scale,
        "run_to_run_equal": bool((alone == again).all()),
        "other_path_equal": bool((alone == other).all()),
        "beside_long_prefill_relative": float(np.abs(alone - beside).max()) / scale,
    }


def _turn(content: str) -> str:
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


def _noise(seconds: int) -> np.ndarray:
    return np.random.default_rng(seconds).normal(0, 0.1, seconds * SAMPLE_RATE).astype(np.float32)


def _picture(width: int, height: int, shift: int = 0) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    channels = [np.sin((x + 3 * shift) / 9), np.cos(y / 7), np.sin((x + y) / 11)]
    return Image.fromarray(((np.stack(channels, axis=-1) + 1) * 127).astype(np.uint8))
