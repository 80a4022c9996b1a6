"""What happens to a step's codes: cut per stream into chunks and given to the sink, behind the engine or in line."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable

import numpy as np
import torch

from python_backends.config.errors import OmniError, StageFailed
from python_backends.config.stage import Finish
from python_backends.engines_common.delivery import Delivery
from python_backends.engines_common.transfer import CodeTransfer
from python_backends.talker.request import TalkerSink
from python_backends.talker.stream import TalkerStream

log = logging.getLogger(__name__)


class ChunkBuilder:
    """Turns codes into sink calls. Used by one thread at a time. `open_streams()`: how many streams are open now."""

    def __init__(self, sink: TalkerSink, codec_eos: int, groups: int, open_streams: Callable[[], int]) -> None:
        self._sink, self._eos, self._groups, self._open_streams = sink, codec_eos, groups, open_streams

    def frames(self, streams: tuple[TalkerStream, ...], codes: np.ndarray) -> None:
        """Take one frame for each stream: `codes` int32 [len(streams), groups]."""
        ends = codes[:, 0] == self._eos
        for stream, frame, end in zip(streams, codes, ends.tolist(), strict=True):
            if not stream.ended:
                self._guarded(stream, self._one_frame, frame, end)

    def end(self, stream: TalkerStream) -> None:
        """End a stream that is not in a step, as the model would."""
        if not stream.ended:
            stream.ending, stream.ended = "stop", True
            self._guarded(stream, self._flush)

    def fail(self, stream: TalkerStream, error: OmniError) -> None:
        """Report `error` on its stream alone, unless the stream has ended already."""
        with stream.lock:
            stream.ended = True
            if stream.closed:
                return
            stream.closed = True
            try:
                self._sink.failed(stream.stream_id, error)
            except Exception:
                log.exception("stream %s: the sink refused the failure %r", stream.stream_id, error)

    def _guarded(self, stream: TalkerStream, act: Callable[..., None], *arguments: object) -> None:
        try:
            with stream.lock:
                if stream.closed:
                    stream.ended = True
                    return
                act(stream, *arguments)
        except OmniError as error:
            self.fail(stream, error)
        except Exception as error:
            log.exception("stream %s: the sink failed", stream.stream_id)
            self.fail(stream, StageFailed(f"talker output: {error}"))

    def _one_frame(self, stream: TalkerStream, frame: np.ndarray, end: bool) -> None:
        if end:
            stream.ending = "stop"
        else:
            stream.frames += 1
            stream.pending.append(frame.copy())
            if stream.frames == stream.limit:
                stream.ending = "length"
        stream.ended = stream.ending is not None
        self._flush(stream)

    def _flush(self, stream: TalkerStream) -> None:
        """Send what the schedule allows."""
        stream.fit_first_chunk(self._open_streams())
        size = stream.chunk_size
        while not stream.closed and (stream.ending is not None or (size and len(stream.pending) >= size)):
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


class StepOutput:
    """Snapshots each step's codes in one of `entries` places and has the builder handle them in their order.

    A place is free again once the builder has handled it. `on_change` is called then and when a stream has ended, from
    the thread that `delivery` makes its calls on.
    """

    def __init__(
        self,
        builder: ChunkBuilder,
        transfer: CodeTransfer,
        entries: int,
        delivery: Delivery,
        on_change: Callable[[], None],
    ) -> None:
        self._builder, self._transfer, self._delivery, self._on_change = builder, transfer, delivery, on_change
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for entry in range(entries):
            self._free.put(entry)

    def has_room(self) -> bool:
        """Tell whether another step may be launched."""
        return not self._free.empty()

    def submit(self, streams: tuple[TalkerStream, ...], codes: torch.Tensor) -> None:
        """Snapshot `codes` int32 [len(streams), groups]. Needs room; returns at once where delivery has a thread."""
        entry = self._free.get_nowait()
        self._transfer.start(entry, codes)
        self._deliver(lambda: self._handle(entry, streams))

    def end(self, stream: TalkerStream) -> None:
        """End a stream that is not in a step, as the model would."""
        self._deliver(lambda: self._builder.end(stream))

    def fail(self, stream: TalkerStream, error: OmniError) -> None:
        """End a stream with an error, after what was launched for it before."""
        self._deliver(lambda: self._builder.fail(stream, error))

    def join(self) -> None:
        """Return once everything submitted before has been handled."""
        self._delivery.join()

    def close(self) -> None:
        """Handle what is left and stop."""
        self._delivery.close()

    def _deliver(self, act: Callable[[], None]) -> None:
        def deliver() -> None:
            act()
            self._on_change()

        self._delivery.put(deliver)
        self._delivery.drain()

    def _handle(self, entry: int, streams: tuple[TalkerStream, ...]) -> None:
        try:
            self._builder.frames(streams, self._transfer.wait(entry))
        except Exception as error:
            log.exception("codes of a step were lost")
            for stream in streams:
                self._builder.fail(stream, StageFailed(f"talker output: {error}"))
        self._free.put(entry)
