"""Which requests are worked on, which wait, which are refused."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from python_backends.config.errors import Overloaded
from python_backends.orchestrator.limits import Limits
from python_backends.orchestrator.stream import Stream

_SMOOTHING = 0.2  # weight of the latest request in the mean duration


class Admission:
    """Counts streams in flight, in all and by stage, and keeps the others in a bounded queue. Thread-safe.

    A stream waits until there is room for it in all its stages; one that needs fewer stages may pass it. `admit` is
    called with each stream that may start; it must not block.
    """

    def __init__(self, limits: Limits, admit: Callable[[Stream], None]) -> None:
        self._limits = limits
        self._start = admit
        self._waiting: deque[Stream] = deque()
        self._holds: dict[str, set[str]] = {}
        self._stages: Counter[str] = Counter()
        self._mean_s = 1.0
        self._lock = threading.Lock()

    def offer(self, stream: Stream) -> None:
        """Admit the stream or let it wait. Raises Overloaded, with a hint when to retry, when the queue is full."""
        with self._lock:
            if self._fits(stream):  # of those that wait none does
                self._admit(stream)
            elif len(self._waiting) < self._limits.max_queued:
                self._waiting.append(stream)
            else:
                raise Overloaded(
                    f"{len(self._holds)} requests in flight and {len(self._waiting)} waiting", self._retry_after_s()
                )

    def leave_stage(self, stream: Stream, stage: str) -> None:
        """A stage has done its part of the stream."""
        with self._lock:
            held = self._holds.get(stream.stream_id, set())
            if stage in held:
                held.discard(stage)
                self._stages[stage] -= 1
                self._admit_waiting()

    def leave(self, stream: Stream) -> None:
        """The stream has ended, or waits no longer."""
        with self._lock:
            held = self._holds.pop(stream.stream_id, None)
            if held is None:
                if stream in self._waiting:
                    self._waiting.remove(stream)
                return
            self._stages.subtract(held)
            self._mean_s += _SMOOTHING * (time.monotonic() - stream.started - self._mean_s)
            self._admit_waiting()

    def _fits(self, stream: Stream) -> bool:
        if len(self._holds) >= self._limits.max_in_flight:
            return False
        return all(self._stages[name] < self._limits.stages.get(name, math.inf) for name in stream.expected)

    def _admit(self, stream: Stream) -> None:
        self._holds[stream.stream_id] = set(stream.expected)
        self._stages.update(stream.expected)
        self._start(stream)

    def _admit_waiting(self) -> None:
        for stream in list(self._waiting):
            if self._fits(stream):
                self._waiting.remove(stream)
                self._admit(stream)

    def _retry_after_s(self) -> int:
        """When the queue has likely moved on by one place."""
        return max(1, math.ceil(self._mean_s * (len(self._waiting) + 1) / self._limits.max_in_flight))
