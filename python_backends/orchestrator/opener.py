"""Opens streams on their stages: requests that wait together are opened together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from python_backends.orchestrator.stream import Stream

BATCH = 16


class Opener:
    """One thread that hands waiting streams to `open_streams`, at most BATCH at a time.

    A call to a stage costs the same for one stream as for many, so a burst of requests is opened by few calls, and a
    request that comes alone waits for nobody.
    """

    def __init__(self, open_streams: Callable[[list[Stream]], None]) -> None:
        self._open_streams = open_streams
        self._waiting: queue.SimpleQueue[Stream | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="opener", daemon=True)
        self._thread.start()

    def put(self, stream: Stream) -> None:
        self._waiting.put(stream)

    def _run(self) -> None:
        while (stream := self._waiting.get()) is not None:
            streams = [stream]
            while len(streams) < BATCH and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    return
                streams.append(more)
            self._open_streams(streams)

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join(5)
