"""The open streams of one engine process: where their results go, and in which order."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import numpy as np

from python_backends.config.errors import OmniError, ProtocolError, StageFailed
from python_backends.connectors.chunk import Chunk, SequenceChecker
from python_backends.connectors.zmq_link import ChunkSender

log = logging.getLogger(__name__)


@dataclass
class Route:
    """Destinations of one stream: `reply` is the BLS model's address, `sink` the next stage's (or None)."""

    stream_id: str
    reply: str
    sink: str | None
    next_seq: dict[str, int] = field(default_factory=dict)


class Streams:
    """Registry of open streams and the way out for their chunks. Thread-safe.

    A stream is opened once and ended once (`finish`, `fail` or `drop`); what arrives for it afterwards is ignored.
    """

    def __init__(self, stage: str, sender: ChunkSender) -> None:
        self._stage = stage
        self._sender = sender
        self._routes: dict[str, Route] = {}
        self._checker = SequenceChecker()
        self._lock = threading.Lock()
        self.unknown_chunks = 0

    def open(self, stream_id: str, reply: str, sink: str | None) -> None:
        """Raises ProtocolError when the stream is open already."""
        with self._lock:
            if stream_id in self._routes:
                raise ProtocolError(f"stream {stream_id} is open already")
            self._routes[stream_id] = Route(stream_id, reply, sink)

    def is_open(self, stream_id: str) -> bool:
        return stream_id in self._routes

    def check(self, chunk: Chunk) -> bool:
        """True when `chunk` is the next of an open stream; False when its stream is not open (any more).

        Raises ProtocolError for a gap or a repeat.
        """
        with self._lock:
            if chunk.stream_id not in self._routes:
                self.unknown_chunks += 1
                return False
            self._checker.check(chunk)
            return True

    def post(
        self,
        stream_id: str,
        kind: str,
        *,
        to_sink: bool = False,
        finished: bool = False,
        meta: dict | None = None,
        tensors: dict[str, np.ndarray] | None = None,
    ) -> bool:
        """Send one chunk to the BLS model, or to the next stage with `to_sink`. False when the stream has ended."""
        with self._lock:
            route = self._routes.get(stream_id)
            if route is None:
                return False
            address = route.sink if to_sink else route.reply
            if address is None:
                return True
            seq = route.next_seq.get(address, 0)
            route.next_seq[address] = seq + 1
        chunk = Chunk(stream_id, self._stage, seq, kind, finished, None, meta or {}, tensors or {})
        try:
            return self._sender.send(address, [chunk])
        except StageFailed as error:
            log.error("stream %s: %s", stream_id, error)
            self.fail(stream_id, StageFailed(f"{self._stage}: {error}"))
            return False

    def drop(self, stream_id: str) -> bool:
        """End a stream without a word. False when it had ended already."""
        with self._lock:
            self._checker.forget(stream_id, ("thinker", "talker", "code2wav"))
            return self._routes.pop(stream_id, None) is not None

    def fail(self, stream_id: str, error: OmniError) -> bool:
        """End a stream and tell the BLS model why. False when it had ended already."""
        with self._lock:
            route = self._routes.get(stream_id)
        if route is None or not self.drop(stream_id):
            return False
        seq = route.next_seq.get(route.reply, 0)
        chunk = Chunk(stream_id, self._stage, seq, "abort", True, (error.code, str(error)))
        try:
            self._sender.send(route.reply, [chunk])
        except StageFailed as unreachable:
            log.error("stream %s failed (%s) and its client side is unreachable: %s", stream_id, error, unreachable)
        return True

    def ids(self) -> list[str]:
        with self._lock:
            return list(self._routes)

    def __len__(self) -> int:
        return len(self._routes)
