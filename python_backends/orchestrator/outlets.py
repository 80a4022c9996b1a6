"""The threads that answer clients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from python_backends.orchestrator.stream import Stream

THREADS = 4


class Outlets:
    """A few threads that call `serve(stream)`, always the same one for a stream.

    A response waits for the server to take it. One thread for all would add these waits up, and hold up whoever comes
    after. A stream is queued once however often it is put: what gathers meanwhile leaves together.
    """

    def __init__(self, serve: Callable[[Stream], None], threads: int = THREADS) -> None:
        self._serve = serve
        self._queues: list[queue.SimpleQueue[Stream | None]] = [queue.SimpleQueue() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(waiting,), name="outlet", daemon=True) for waiting in self._queues
        ]
        for thread in self._threads:
            thread.start()

    def put(self, stream: Stream) -> None:
        """To be called under the lock that guards the stream."""
        if not stream.queued:
            stream.queued = True
            self._queues[hash(stream.stream_id) % len(self._queues)].put(stream)

    def _run(self, waiting: queue.SimpleQueue[Stream | None]) -> None:
        while (stream := waiting.get()) is not None:
            self._serve(stream)

    def close(self) -> None:
        """Serve what is queued, then end the threads."""
        for waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join(2)
