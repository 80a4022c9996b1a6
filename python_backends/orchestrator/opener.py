"""Opens streams on their stages: requests that wait together are opened together."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from python_backends.orchestrator.stream import Stream

BATCH = 16
_CLOSE_S = 5.0


class Opener:
    """Hands waiting streams to `open_streams`, at most BATCH at a time; streams of the same stages wait together.

    A call to a stage costs the same for one stream as for many, so a burst of requests is opened by few calls, and a
    request that comes alone waits for nobody. Streams that touch different sets of stages are opened by different
    threads, side by side: a call to a Talker that hangs holds up those that speak, not those that only write.
    """

    def __init__(self, open_streams: Callable[[list[Stream]], None]) -> None:
        self._open_streams = open_streams
        self._lanes: dict[tuple[str, ...], _Lane] = {}
        self._lock = threading.Lock()

    def put(self, stream: Stream) -> None:
        with self._lock:
            lane = self._lanes.get(stream.expected)
            if lane is None:
                lane = self._lanes[stream.expected] = _Lane(self._open_streams)
        lane.waiting.put(stream)

    def close(self) -> None:
        """Open no more; wait at most 5 s for calls under way."""
        deadline = time.monotonic() + _CLOSE_S
        for lane in self._lanes.values():
            lane.waiting.put(None)
        for lane in self._lanes.values():
            lane.thread.join(max(0.0, deadline - time.monotonic()))


class _Lane:
    """One thread, and the streams that wait for it."""

    def __init__(self, open_streams: Callable[[list[Stream]], None]) -> None:
        self._open_streams = open_streams
        self.waiting: queue.SimpleQueue[Stream | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="opener", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (stream := self.waiting.get()) is not None:
            streams = [stream]
            while len(streams) < BATCH and not self.waiting.empty():
                more = self.waiting.get()
                if more is None:
                    return
                streams.append(more)
            self._open_streams(streams)
            del stream, streams  # or they would live until the next request
