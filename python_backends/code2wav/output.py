"""Where results leave the engine: on the engine thread (CPU), or on a builder thread behind the device (CUDA)."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class InlineOutput:
    """Deliveries run when the engine thread drains them. `put` may be called from any thread."""

    def __init__(self) -> None:
        self._items: deque[Callable[[], None]] = deque()

    def put(self, deliver: Callable[[], None]) -> None:
        self._items.append(deliver)

    def pending(self) -> bool:
        return bool(self._items)

    def drain(self) -> bool:
        """Run what is queued; False if there was nothing."""
        drained = False
        while self._items:
            self._items.popleft()()
            drained = True
        return drained

    def close(self) -> None:
        self.drain()


class ThreadOutput:
    """Deliveries run in order on one builder thread, which waits for the device so that the step loop need not."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="code2wav-builder", daemon=True)
        self._thread.start()

    def put(self, deliver: Callable[[], None]) -> None:
        self._items.put(deliver)

    def pending(self) -> bool:
        return False

    def drain(self) -> bool:
        return False

    def close(self) -> None:
        """Deliver what is queued, then end the thread."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (deliver := self._items.get()) is not None:
            try:
                deliver()
            except Exception:
                _log.exception("delivering audio failed")
