"""The open streams of one engine process: where their results go, and in which order."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from python_backends.config.errors import OmniError, ProtocolError, StageFailed
from python_backends.config.stage_keys import STAGES
from python_backends.connectors.chunk import Chunk, Kind, SequenceChecker
from python_backends.connectors.outbox import Outbox
from python_backends.connectors.zmq_link import ChunkSender, is_gone


@dataclass
class Route:
    """Destinations of one stream: `reply` is the BLS model's address, `sink` the next stage's (or None)."""

    reply: str
    sink: str | None
    next_seq: dict[str, int] = field(default_factory=dict)


class Streams:
    """Registry of open streams and the way out for their chunks. Thread-safe.

    A stream is opened once and ended once (`finish`, `fail` or `drop`); what arrives for it afterwards is ignored.
    """

    def __init__(self, stage: str, sender: ChunkSender) -> None:
        self._stage = stage
        self._outbox = Outbox(sender, lambda stream_id, error: self.fail(stream_id, StageFailed(f"{stage}: {error}")))
        self._routes: dict[str, Route] = {}
        self._checker = SequenceChecker()
        self._lock = threading.Lock()

    def open(self, stream_id: str, reply: str, sink: str | None) -> None:
        """Raises ProtocolError when the stream is open already."""
        with self._lock:
            if stream_id in self._routes:
                raise ProtocolError(f"stream {stream_id} is open already")
            self._routes[stream_id] = Route(reply, sink)

    def check(self, chunk: Chunk) -> bool:
        """True when `chunk` is the next of an open stream; False when its stream is not open (any more).

        Raises ProtocolError for a gap or a repeat.
        """
        with self._lock:
            if chunk.stream_id not in self._routes:
                return False
            self._checker.check(chunk)
            return True

    def post(
        self,
        stream_id: str,
        kind: Kind,
        *,
        to_sink: bool = False,
        finished: bool = False,
        meta: dict | None = None,
        tensors: dict[str, np.ndarray] | None = None,
    ) -> bool:
        """Queue one chunk for the BLS model, or for the next stage with `to_sink`. False when the stream has ended.

        The tensors must not change afterwards. Blocks while the destination takes nothing and its queue is full.
        """
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
        self._outbox.put(address, chunk)
        return True

    def finish(self, stream_id: str) -> None:
        """End a stream whose last chunks are posted: they still travel."""
        self._forget(stream_id)

    def drop(self, stream_id: str) -> bool:
        """End a stream without a word; what is still queued is not sent. False when it had ended already."""
        known = self._forget(stream_id) is not None
        self._outbox.withdraw(stream_id)
        return known

    def fail(self, stream_id: str, error: OmniError) -> bool:
        """End a stream and tell the BLS model why. False when it had ended already."""
        route = self._forget(stream_id)
        if route is None:
            return False
        seq = route.next_seq.get(route.reply, 0)
        chunk = Chunk(stream_id, self._stage, seq, "abort", True, (error.code, str(error)))
        self._outbox.put(route.reply, chunk)
        return True

    def leave_the_gone(self) -> list[str]:
        """Drop what is there for processes that have ended: the streams of an opener, whose ids are returned, and the
        thread and the connection that served a destination, such as a later stage before it was restarted."""
        with self._lock:
            openers = {route.reply for route in self._routes.values()}
        gone = {address for address in openers | set(self._outbox.destinations()) if is_gone(address)}
        with self._lock:
            lost = [stream_id for stream_id, route in self._routes.items() if route.reply in gone]
        dropped = [stream_id for stream_id in lost if self.drop(stream_id)]
        for address in gone:
            self._outbox.abandon(address)
        return dropped

    def _forget(self, stream_id: str) -> Route | None:
        with self._lock:
            self._checker.forget(stream_id, STAGES)
            return self._routes.pop(stream_id, None)

    def close(self) -> None:
        """Send what is queued and stop."""
        self._outbox.close()

    def ids(self) -> list[str]:
        with self._lock:
            return list(self._routes)

    def __len__(self) -> int:
        return len(self._routes)
