"""How results leave an engine: calls in the order in which they were put, in line or on a thread behind the device."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)


class Delivery(Protocol):
    """Calls that may wait for the device and for who takes the results. `put` may be called from any thread."""

    def put(self, deliver: Callable[[], None]) -> None:
        """Queue a call."""

    def pending(self) -> bool:
        """Whether `drain` has something to do."""

    def drain(self) -> bool:
        """Make the calls that are the engine thread's to make; False if there was none."""

    def join(self) -> None:
        """Return once every call that was put before has been made."""

    def close(self) -> None:
        """Make the calls that are queued, then stop."""


class InlineDelivery:
    """Calls are made when the engine thread drains them; what they raise leaves `drain`."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def put(self, deliver: Callable[[], None]) -> None:
        self._calls.append(deliver)

    def pending(self) -> bool:
        return bool(self._calls)

    def drain(self) -> bool:
        drained = False
        while self._calls:
            self._calls.popleft()()
            drained = True
        return drained

    def join(self) -> None:
        self.drain()

    def close(self) -> None:
        self.drain()


class ThreadDelivery:
    """Calls are made by a daemon thread, so that the engine thread waits for none. What they raise is logged."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, deliver: Callable[[], None]) -> None:
        self._calls.put(deliver)

    def pending(self) -> bool:
        return False

    def drain(self) -> bool:
        return False

    def join(self) -> None:
        if self._thread.is_alive():
            made = threading.Event()
            self._calls.put(made.set)
            made.wait()

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (deliver := self._calls.get()) is not None:
            try:
                deliver()
            except Exception:
                log.exception("%s: a delivery failed", self._thread.name)
