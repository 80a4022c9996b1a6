"""Generators in place of the three engines: they emit at given rates and stamp what they emit.

A text delta is `STAMP` characters: the nanosecond of the monotonic clock at which it was emitted, padded. A chunk of
codes carries its stamp in its first two integers; the played Code2Wav passes it on in the first two samples of the
audio. So a client on the same machine reads off how long each piece was under way.
"""

from __future__ import annotations

import collections
import threading
import time
from dataclasses import dataclass

import numpy as np

from python_backends.config.sampling import TalkerSampling, ThinkerSampling
from python_backends.config.stage import ChunkSchedule, Finish

STAMP = 20
SAMPLES_A_FRAME = 1920


def stamp_text() -> str:
    return f"{time.monotonic_ns():0{STAMP}d}"


@dataclass(frozen=True)
class PlayedOptions:
    """`step_ms`: milliseconds between two steps of the played engine, each of which serves every open stream."""

    step_ms: float


@dataclass(frozen=True)
class PlayedThinkerRequest:
    stream_id: str
    messages: list[dict]
    sampling: ThinkerSampling
    seed: int
    speak: bool
    media: object
    template: dict
    speech_rows: int | None


@dataclass(frozen=True)
class PlayedTalkerRequest:
    stream_id: str
    speaker: str
    sampling: TalkerSampling
    seed: int
    schedule: ChunkSchedule


@dataclass(frozen=True)
class PlayedTextChunk:
    ids: np.ndarray
    finished: bool
    prompt_ids: np.ndarray | None = None
    multimodal: object | None = None


@dataclass(frozen=True)
class PlayedCode2WavRequest:
    stream_id: str
    sample_format: str = "float32"


class _Played:
    """Streams, and steps at multiples of `step_ms`."""

    def __init__(self, options: PlayedOptions, sink) -> None:
        self._sink = sink
        self._period = options.step_ms / 1000
        self._next = time.monotonic()
        self._streams: dict = {}
        self._work = threading.Event()

    def _open(self, stream_id: str, state: object) -> None:
        self._streams[stream_id] = state
        self._work.set()

    def abort(self, stream_id: str) -> None:
        self._streams.pop(stream_id, None)

    def wait_for_work(self, timeout_s: float) -> None:
        self._work.wait(timeout_s)
        self._work.clear()
        self._next = max(self._next, time.monotonic())

    def _await_step(self) -> None:
        self._next += self._period
        time.sleep(max(0.0, self._next - time.monotonic()))

    def describe(self) -> dict:
        return {}

    def stats(self) -> dict[str, int]:
        return {"streams": len(self._streams)}

    def close(self) -> None:
        self._streams.clear()


class PlayedThinker(_Played):
    """One id and one stamped delta a stream and step, `sampling.max_tokens` of them."""

    def __init__(self, options: PlayedOptions, sink) -> None:
        super().__init__(options, sink)
        threading.Thread(target=self._run, name="played", daemon=True).start()

    def add(self, request: PlayedThinkerRequest) -> None:
        self._sink.prompt(request.stream_id, np.arange(128, dtype=np.int32), None)
        self._open(request.stream_id, [0, request.sampling.max_tokens])

    def run_until(self, stop: threading.Event) -> None:
        stop.wait()

    def _run(self) -> None:
        while True:
            if not self.step():
                self.wait_for_work(0.1)

    def step(self) -> bool:
        if not self._streams:
            return False
        self._await_step()
        for stream_id, state in list(self._streams.items()):
            state[0] += 1
            finish = None
            if state[0] == state[1]:
                finish = Finish("length", {"prompt_tokens": 128, "completion_tokens": state[1]})
                self._streams.pop(stream_id, None)
            self._sink.output(stream_id, np.array([state[0]], np.int32), stamp_text(), finish)
        return True


@dataclass
class _Speech:
    sizes: object
    left: int
    size: int = 0
    pending: int = 0
    has_text: bool = False


class PlayedTalker(_Played):
    """One frame a stream and step from the first text id on, `sampling.max_tokens` of them, cut by the schedule."""

    max_model_len = 8192

    def add(self, request: PlayedTalkerRequest) -> None:
        sizes = request.schedule.sizes()
        self._open(request.stream_id, _Speech(sizes, request.sampling.max_tokens, next(sizes)))

    def feed(self, stream_id: str, chunk: PlayedTextChunk) -> None:
        if chunk.ids.size and stream_id in self._streams:
            self._streams[stream_id].has_text = True
            self._work.set()

    def step(self) -> bool:
        speaking = [(name, speech) for name, speech in list(self._streams.items()) if speech.has_text]
        if not speaking:
            return False
        self._await_step()
        for stream_id, speech in speaking:
            speech.left -= 1
            speech.pending += 1
            if speech.left and speech.pending != speech.size:
                continue
            codes = np.zeros((speech.pending, 16), np.int32)
            codes[0, :2].view(np.int64)[0] = time.monotonic_ns()
            finish = None
            if not speech.left:
                finish = Finish("length", {"frames": 1})
                self._streams.pop(stream_id, None)
            speech.pending, speech.size = 0, next(speech.sizes)
            self._sink.codes(stream_id, codes, finish)
        return True


class PlayedCode2Wav(_Played):
    """Answers a chunk of codes at once with as much audio, its stamp passed on."""

    def __init__(self, options: PlayedOptions, sink) -> None:
        super().__init__(options, sink)
        self._queue: collections.deque = collections.deque()

    def add(self, request: PlayedCode2WavRequest) -> None:
        self._open(request.stream_id, np.dtype(request.sample_format))

    def feed(self, stream_id: str, codes: np.ndarray, finished: bool) -> None:
        self._queue.append((stream_id, codes, finished))
        self._work.set()

    def step(self) -> bool:
        if not self._queue:
            return False
        while self._queue:
            stream_id, codes, finished = self._queue.popleft()
            dtype = self._streams.get(stream_id)
            if dtype is None:
                continue
            samples = np.zeros(codes.shape[0] * SAMPLES_A_FRAME, dtype)
            if codes.size:
                samples[: 8 // dtype.itemsize] = codes[0, :2].view(dtype)
            finish = Finish("stop", {"samples": samples.size}) if finished else None
            if finished:
                self._streams.pop(stream_id, None)
            self._sink.audio(stream_id, samples, finish)
        return True
