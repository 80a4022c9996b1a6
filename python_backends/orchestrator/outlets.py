"""The threads that answer clients."""

from __future__ import annotations

import heapq
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable

from python_backends.orchestrator.stream import Stream

THREADS = 4
GRID_S = 0.002  # what was put off leaves at multiples of it: one wake-up of the thread for several streams


class Outlets:
    """A few threads that call `serve(stream)`, always the same one for a stream.

    A response waits for the server to take it. One thread for all would add these waits up, and hold up whoever comes
    after. A stream is queued once however often it is put: what gathers meanwhile leaves together.

    A response costs the host much the same whatever it carries. So those of one stream lie at least `spacing()` seconds
    apart, except that an urgent one leaves at once.
    """

    def __init__(
        self, serve: Callable[[Stream], None], spacing: Callable[[], float] = lambda: 0.0, threads: int = THREADS
    ) -> None:
        self._serve = serve
        self._spacing = spacing
        self._queues: list[queue.SimpleQueue[Stream | None]] = [queue.SimpleQueue() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(waiting,), name="outlet", daemon=True) for waiting in self._queues
        ]
        for thread in self._threads:
            thread.start()

    def put(self, stream: Stream) -> None:
        """To be called under the lock that guards the stream."""
        if not stream.queued or (stream.urgent and not stream.hurried):
            stream.queued, stream.hurried = True, stream.urgent
            self._queues[hash(stream.stream_id) % len(self._queues)].put(stream)

    def _run(self, waiting: queue.SimpleQueue[Stream | None]) -> None:
        # A heap: when it is due, a number that breaks ties, the stream, and when it was answered last.
        later: list[tuple[float, int, Stream, float]] = []
        numbers = itertools.count()
        while True:
            try:
                stream = waiting.get(timeout=max(0.0, later[0][0] - time.monotonic()) if later else None)
            except queue.Empty:
                pass
            else:
                if stream is None:
                    break
                due = stream.answered_at + self._spacing()
                if stream.urgent or due <= time.monotonic():
                    self._answer(stream)
                else:
                    due = math.ceil(due / GRID_S) * GRID_S
                    heapq.heappush(later, (due, next(numbers), stream, stream.answered_at))
            while later and later[0][0] <= time.monotonic():
                _, _, stream, answered_at = heapq.heappop(later)
                if stream.answered_at == answered_at:  # nothing urgent took along what it had
                    self._answer(stream)
        for _, _, stream, _ in later:
            self._serve(stream)

    def _answer(self, stream: Stream) -> None:
        stream.answered_at = time.monotonic()
        self._serve(stream)

    def close(self) -> None:
        """Serve what is queued or put off, then end the threads."""
        for waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join(2)
