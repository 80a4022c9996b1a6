"""What happens to a step's codes: cut per stream into chunks and given to the sink, behind the engine or in line."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from python_backends.config.errors import OmniError, StageFailed
from python_backends.config.stage import Finish
from python_backends.talker.request import TalkerSink
from python_backends.talker.stream import Stream
from python_backends.talker.transfer import CodeTransfer

logger = logging.getLogger(__name__)

HELD_RETRY_S = 0.005


@dataclass(frozen=True)
class StepOutput:
    """A launched step: the ring entry with its codes and the stream of each row."""

    entry: int
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class Ending:
    """A stream that ends without a step: `reason` for a normal end, or an error."""

    stream: Stream
    reason: str | None = None
    error: OmniError | None = None


class ChunkBuilder:
    """Turns codes into sink calls. Used by one thread at a time."""

    def __init__(
        self,
        sink: TalkerSink,
        codec_eos: int,
        groups: int,
        progress_frames: int,
        open_streams: Callable[[], int] = lambda: 0,
    ) -> None:
        self._sink, self._eos, self._groups, self._progress = sink, codec_eos, groups, progress_frames
        self._open_streams = open_streams
        self._ready: Callable[[str], bool] | None = getattr(sink, "ready", None)
        self._held: dict[str, Stream] = {}

    @property
    def holds(self) -> bool:
        """Some stream has a chunk that its sink is not ready for."""
        return bool(self._held)

    def frames(self, streams: tuple[Stream, ...], codes: np.ndarray) -> None:
        """Take one frame for each stream: `codes` int32 [len(streams), groups]."""
        ends = codes[:, 0] == self._eos
        for stream, frame, end in zip(streams, codes, ends.tolist(), strict=True):
            if not stream.ended:
                self._guarded(stream, self._one_frame, frame, end)

    def end(self, ending: Ending) -> None:
        """End a stream that is not in a step."""
        stream = ending.stream
        if ending.error is not None:
            self.fail(stream, ending.error)
        elif not stream.ended:
            stream.ending, stream.ended = ending.reason, True
            self._guarded(stream, self._flush)

    def fail(self, stream: Stream, error: OmniError) -> None:
        """Report `error` on its stream alone, unless the stream has ended already."""
        self._held.pop(stream.stream_id, None)
        with stream.lock:
            stream.ended = True
            if stream.closed:
                return
            stream.closed = True
            try:
                self._sink.failed(stream.stream_id, error)
            except Exception:
                logger.exception("stream %s: the sink refused the failure %r", stream.stream_id, error)

    def retry_held(self) -> None:
        """Offer held chunks again."""
        for stream in list(self._held.values()):
            self._guarded(stream, self._flush)

    def _guarded(self, stream: Stream, act: Callable[..., None], *arguments: object) -> None:
        try:
            with stream.lock:
                if stream.closed:
                    stream.ended = True
                    self._held.pop(stream.stream_id, None)
                    return
                act(stream, *arguments)
        except OmniError as error:
            self.fail(stream, error)
        except Exception as error:
            logger.exception("stream %s: the sink failed", stream.stream_id)
            self.fail(stream, StageFailed(f"talker output: {error}"))

    def _one_frame(self, stream: Stream, frame: np.ndarray, end: bool) -> None:
        if end:
            stream.ending = "stop"
        else:
            stream.frames += 1
            stream.pending.append(frame.copy())
            if stream.frames == stream.limit:
                stream.ending = "length"
        stream.ended = stream.ending is not None
        if stream.frames and not end and (stream.frames % self._progress == 0 or stream.ended):
            self._sink.progress(stream.stream_id, stream.frames)
        self._flush(stream)

    def _flush(self, stream: Stream) -> None:
        """Send what the schedule allows. A held stream has at most one unsent chunk and the steps then in flight."""
        stream.fit_first_chunk(self._open_streams())
        size = stream.chunk_size
        while not stream.closed and (stream.ending is not None or (size and len(stream.pending) >= size)):
            if self._ready is not None and not self._ready(stream.stream_id):
                self._held[stream.stream_id] = stream
                return
            part = stream.pending[:size] if size else stream.pending
            rest = stream.pending[len(part) :]
            finish = None
            if stream.ending is not None and not rest:
                usage = {"frames": stream.frames, "seed": stream.seed}
                if stream.prompt is not None:
                    usage["prompt_rows"] = stream.prompt.rows + 1
                finish = Finish(stream.ending, usage)
            codes = np.stack(part) if part else np.empty((0, self._groups), dtype=np.int32)
            self._sink.codes(stream.stream_id, codes, finish)
            stream.pending = rest
            stream.next_chunk()
            size = stream.chunk_size
            stream.closed = stream.closed or finish is not None
        self._held.pop(stream.stream_id, None)


class SynchronousOutput:
    """Waits for each step's codes on the engine thread."""

    def __init__(self, builder: ChunkBuilder, transfer: CodeTransfer) -> None:
        self._builder, self._transfer = builder, transfer

    def has_room(self) -> bool:
        return True

    def submit(self, streams: tuple[Stream, ...], codes: torch.Tensor) -> None:
        """Wait for `codes` int32 [len(streams), groups] and hand them on."""
        self._transfer.start(0, codes)
        self._builder.frames(streams, self._transfer.wait(0))

    def end(self, ending: Ending) -> None:
        self._builder.end(ending)

    def poll(self) -> None:
        """Offer held chunks again."""
        self._builder.retry_held()

    @property
    def busy(self) -> bool:
        return self._builder.holds

    def join(self) -> None:
        """Nothing is ever behind."""

    def close(self) -> None:
        """Nothing to stop."""


class AsynchronousOutput:
    """Snapshots each step's codes and finishes them on a daemon thread.

    A ring entry is free again once the builder has handled it; `on_room` is called then, from the builder's thread.
    """

    def __init__(
        self, builder: ChunkBuilder, transfer: CodeTransfer, entries: int, on_room: Callable[[], None]
    ) -> None:
        self._builder, self._transfer, self._on_room = builder, transfer, on_room
        self._items: queue.SimpleQueue[StepOutput | Ending | threading.Event | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for entry in range(entries):
            self._free.put(entry)
        self._thread = threading.Thread(target=self._run, name="talker-builder", daemon=True)
        self._thread.start()

    def has_room(self) -> bool:
        """Tell whether another step may be launched."""
        return not self._free.empty()

    def submit(self, streams: tuple[Stream, ...], codes: torch.Tensor) -> None:
        """Snapshot `codes` int32 [len(streams), groups] and return at once. Needs room."""
        entry = self._free.get_nowait()
        self._transfer.start(entry, codes)
        self._items.put(StepOutput(entry, streams))

    def end(self, ending: Ending) -> None:
        self._items.put(ending)

    def poll(self) -> None:
        """The builder's thread offers held chunks itself."""

    @property
    def busy(self) -> bool:
        return False

    def join(self) -> None:
        """Return once everything submitted before has been handled."""
        if self._thread.is_alive():
            mark = threading.Event()
            self._items.put(mark)
            mark.wait()

    def close(self) -> None:
        """Handle what is left and stop the thread."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                item = self._items.get(timeout=HELD_RETRY_S if self._builder.holds else None)
            except queue.Empty:
                self._builder.retry_held()
                continue
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()
            elif isinstance(item, Ending):
                self._builder.end(item)
                self._on_room()  # its slot is free
            else:
                self._step(item)

    def _step(self, item: StepOutput) -> None:
        try:
            self._builder.frames(item.streams, self._transfer.wait(item.entry))
        except Exception as error:
            logger.exception("codes of a step were lost")
            for stream in item.streams:
                self._builder.fail(stream, StageFailed(f"talker output: {error}"))
        self._free.put(item.entry)
        self._on_room()
