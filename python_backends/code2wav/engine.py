"""The Code2Wav engine: streams of codec frames in, 24 kHz audio out, batched over streams."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from python_backends.code2wav.build import build_runner
from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.options import SAMPLE_RATE, Code2WavOptions, Code2WavRequest, Code2WavSink
from python_backends.code2wav.runner import Consumer
from python_backends.code2wav.scheduler import DeadlineScheduler, Plan
from python_backends.code2wav.stream import Code2WavStream
from python_backends.config.errors import InvalidRequest, OmniError, Overloaded, ProtocolError, StageFailed
from python_backends.config.stage import Finish
from python_backends.engines_common.delivery import Delivery, InlineDelivery, ThreadDelivery

log = logging.getLogger(__name__)
# A row of a launched step: its stream, whether it is the stream's first chunk, whether its last.
_Chunk = tuple[Code2WavStream, bool, bool]


class Code2WavEngine:
    """Decodes many streams at once. One thread calls `step`; `add`, `feed` and `abort` may be called from any thread.

    Results go to the sink: on the CPU from `step`, on CUDA from a builder thread. Every stream ends exactly once: with
    a `Finish` ("stop", usage `frames` and `samples`), with `failed`, or silently by `abort`.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        options: Code2WavOptions,
        sink: Code2WavSink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.config = Code2WavConfig.from_checkpoint(checkpoint)
        self._runner = build_runner(checkpoint, self.config, options)
        self._sink = sink
        self._clock = clock
        self._scheduler = DeadlineScheduler(options)
        on_cuda = options.device.startswith("cuda")
        self._output: Delivery = ThreadDelivery("code2wav-builder") if on_cuda else InlineDelivery()
        self._changed = threading.Condition()
        self._streams: dict[str, Code2WavStream] = {}
        self._running: dict[str, Code2WavStream] = {}
        self._waiting: deque[Code2WavStream] = deque()
        self._free_slots = list(range(options.max_num_seqs))
        self._arrivals = self._steps = self._frames = 0
        self._closed = False
        self._error: Exception | None = None

    def add(self, request: Code2WavRequest) -> None:
        """Open a stream: reserve a slot, or queue for one. Raises InvalidRequest (id in use) or Overloaded."""
        with self._changed:
            if self._closed:
                raise StageFailed("code2wav is shut down")
            if request.stream_id in self._streams:
                raise InvalidRequest("stream_id", f"{request.stream_id!r} is already open")
            if not self._free_slots and len(self._waiting) >= self.options.max_waiting:
                raise Overloaded(f"code2wav: all {self.options.max_num_seqs} slots taken, the queue is full")
            stream = Code2WavStream(
                request.stream_id, request.sample_format, self._arrivals, self.config.num_quantizers
            )
            self._arrivals += 1
            self._streams[stream.stream_id] = stream
            self._waiting.append(stream)
            self._admit()

    def feed(self, stream_id: str, codes: np.ndarray, finished: bool) -> None:
        """Give a stream its next frames, int [frames, quantizers], perhaps none; `finished` with the last ones.

        Never blocks. Codes that are no codes end that stream alone, with InvalidRequest at the sink; frames after
        `finished` with ProtocolError. Frames of a stream that is not open are dropped: it may just have been aborted.
        """
        problem = self._problem(codes)
        with self._changed:
            stream = self._streams.get(stream_id)
            if stream is None or stream.ended:
                return
            if problem is None and stream.position + stream.pending + len(codes) > self.config.max_position_embeddings:
                problem = f"a stream holds at most {self.config.max_position_embeddings} frames"
            if stream.finished:
                self._fail(stream, ProtocolError(f"stream {stream_id}: codes after the last chunk"))
            elif problem is not None:
                self._fail(stream, InvalidRequest("codes", problem))
            else:
                stream.put(np.array(codes, np.int64), finished, self._clock())
                if finished and not stream.pending:
                    self._release(stream)
                    self._output.put(lambda: self._deliver(stream, _silence(stream), last=True))
            self._changed.notify_all()

    def abort(self, stream_id: str) -> None:
        """End a stream silently and free its slot. Unknown ids are ignored.

        No sink call begins after this returns, except one that the builder thread had already committed to.
        """
        with self._changed:
            stream = self._streams.pop(stream_id, None)
            if stream is not None:
                stream.ended = True
                self._release(stream)
                self._changed.notify_all()

    def step(self) -> bool:
        """Launch one batch, and on the CPU deliver it. False when there was nothing to do.

        Raises what the device raised, after every open stream was failed with StageFailed.
        """
        if self._error is not None:
            raise self._error
        delivered = self._output.drain()
        self._runner.reserve()
        with self._changed:
            now = self._clock()
            plan = self._scheduler.plan(self._running.values(), now)
            if not plan.streams:
                return delivered
            slots = [stream.place for stream in plan.streams]
            positions = [stream.position for stream in plan.streams]
            codes = np.stack([stream.take(plan.frames, now) for stream in plan.streams])
            chunks = self._account(plan)
            # The step takes its place among the deliveries before it is launched: what another thread adds meanwhile,
            # such as the end of one of its streams, must come after its audio.
            launched: Future[Callable[[Consumer], None]] = Future()
            self._output.put(lambda: self._deliver_batch(chunks, launched))
        try:
            launched.set_result(self._runner.launch(codes, slots, positions))
        except Exception as error:
            launched.set_exception(error)
            self._fail_all(StageFailed(f"code2wav: {error}"))
            raise
        self._output.drain()
        return True

    def wait_for_work(self, timeout_s: float) -> None:
        """Return when `step` has something to do, or after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._closed and not self._output.pending():
                now = self._clock()
                plan = self._scheduler.plan(self._running.values(), now)
                remaining = deadline - time.monotonic()
                if plan.streams or remaining <= 0:
                    return
                self._changed.wait(remaining if plan.due_at is None else min(remaining, plan.due_at - now))

    def describe(self) -> dict:
        return {"sample_rate": SAMPLE_RATE}

    def stats(self) -> dict[str, int]:
        """Counts: streams running, waiting and open, free slots; steps and frames since the start."""
        with self._changed:
            return {
                "running": len(self._running),
                "waiting": len(self._waiting),
                "open": len(self._streams),
                "slots_free": len(self._free_slots),
                "steps": self._steps,
                "frames": self._frames,
            }

    def close(self) -> None:
        """Fail what is open, deliver what is queued, and stop. Call it from the engine thread."""
        self._fail_all(StageFailed("code2wav is shut down"))
        self._output.close()

    def _problem(self, codes: np.ndarray) -> str | None:
        quantizers = self.config.num_quantizers
        try:
            codes = np.asarray(codes)
        except ValueError:
            return f"must be integers [frames, {quantizers}], and has rows of several lengths"
        if codes.ndim != 2 or codes.shape[1] != quantizers or codes.dtype.kind not in "iu":
            return f"must be integers [frames, {quantizers}], got {codes.dtype} {list(codes.shape)}"
        if codes.size and not (codes.min() >= 0 and codes.max() < self.config.codebook_size):
            return f"must lie in 0..{self.config.codebook_size - 1}, got {codes.min()}..{codes.max()}"
        return None

    def _account(self, plan: Plan) -> list[_Chunk]:
        """Book a step that is about to be launched. The lock is held."""
        chunks = []
        for stream in plan.streams:
            first, last = stream.position == plan.frames, stream.finished and not stream.pending
            stream.samples = self.config.samples(stream.position)
            chunks.append((stream, first, last))
            if last:
                self._release(stream)
        self._steps += 1
        self._frames += plan.frames * len(plan.streams)
        return chunks

    def _deliver_batch(self, chunks: list[_Chunk], launched: Future[Callable[[Consumer], None]]) -> None:
        rows: list[np.ndarray] = []

        def consume(array: np.ndarray) -> None:
            for (stream, first, _), row in zip(chunks, array, strict=True):
                rows.append(_convert(row[self.config.startup_samples :] if first else row, stream.sample_format))

        try:
            launched.result()(consume)
        except Exception as error:
            self._error = error
            self._fail_all(StageFailed(f"code2wav: {error}"))
            return
        for (stream, _, last), row in zip(chunks, rows, strict=True):
            self._deliver(stream, row, last)

    def _deliver(self, stream: Code2WavStream, samples: np.ndarray, last: bool) -> None:
        with self._changed:
            if stream.ended:
                return
            if last:
                stream.ended = True
                self._streams.pop(stream.stream_id, None)
        finish = Finish("stop", {"samples": stream.samples, "frames": stream.position}) if last else None
        try:
            self._sink.audio(stream.stream_id, samples, finish)
        except Exception:
            log.exception("stream %s: the sink refused audio; the stream is dropped", stream.stream_id)
            with self._changed:
                # Another stream may have its id by now.
                if self._streams.get(stream.stream_id) is stream:
                    del self._streams[stream.stream_id]
                stream.ended = True
                self._release(stream)
                self._changed.notify_all()

    def _fail(self, stream: Code2WavStream, error: OmniError) -> None:
        """End `stream` with `error`, after the audio that is already on its way. The lock is held."""
        self._release(stream)
        stream.finished = True

        def deliver() -> None:
            with self._changed:
                if stream.ended:
                    return
                stream.ended = True
                self._streams.pop(stream.stream_id, None)
            try:
                self._sink.failed(stream.stream_id, error)
            except Exception:
                log.exception("stream %s: the sink refused the failure %r", stream.stream_id, error)

        self._output.put(deliver)

    def _fail_all(self, error: OmniError) -> None:
        with self._changed:
            self._closed = True
            for stream in list(self._streams.values()):
                self._fail(stream, error)
            self._changed.notify_all()
        self._output.drain()

    def _release(self, stream: Code2WavStream) -> None:
        """Take the stream out of scheduling; its slot goes to the next one that waits. The lock is held."""
        if self._running.get(stream.stream_id) is stream:
            del self._running[stream.stream_id]
            self._free_slots.append(stream.place)
            stream.slot = None
        elif stream in self._waiting:
            self._waiting.remove(stream)
        self._admit()

    def _admit(self) -> None:
        while self._free_slots and self._waiting:
            stream = self._waiting.popleft()
            stream.slot = self._free_slots.pop()
            self._running[stream.stream_id] = stream


def _silence(stream: Code2WavStream) -> np.ndarray:
    return np.zeros(0, stream.sample_format)


def _convert(samples: np.ndarray, sample_format: str) -> np.ndarray:
    """A copy of float32 `samples` in [-1, 1], as the stream wants them."""
    return np.rint(samples * 32767).astype(np.int16) if sample_format == "int16" else samples.copy()
