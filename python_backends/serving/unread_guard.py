"""Bounds what clients cost that do not read: tritonserver keeps each answer until it is read, and tells no model."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from python_backends.config.errors import Overloaded

log = logging.getLogger(__name__)
LOOK_S = 0.05
LOG_EVERY_S = 10.0
RETRY_S = 5
_MOVES = 0.01  # of the limit: by less, nobody reads, and nobody sends a large request
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class UnreadLimits:
    """`grown_gb`: how many GB (10^9 bytes) the memory may grow. `stuck_s`: how long it may stay above that while no
    request is in flight."""

    grown_gb: float
    stuck_s: float


def anonymous_bytes_of(pid: int) -> int | None:
    """Resident memory of a process without files and shared memory; None when it cannot be read."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * _PAGE


class UnreadGuard:
    """Refuses new requests while the server's memory has grown beyond a limit since `arm`.

    `memory()` is looked at by a thread every 50 ms, so that a request costs nothing. What runs goes on. Memory that
    stays where it is with nothing in flight (`is_idle`) is held by clients that stay and do not read, or lost: Triton
    2.51 mostly loses what was unread on a stream that its client ends. When a request has been refused in that time,
    none can be served until the server is started again, so `give_up(reason)` is called, once.
    """

    def __init__(
        self,
        limits: UnreadLimits,
        memory: Callable[[], int | None],
        is_idle: Callable[[], bool],
        give_up: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._is_idle = is_idle
        self._give_up = give_up
        self._clock = clock
        self._baseline: int | None = None
        self._grown_gb: float | None = None
        self._stuck_since: float | None = None
        self._stuck_gb = 0.0
        self._refused = 0
        self._refused_before = 0
        self._logged_at: dict[int, float] = {}
        self._has_given_up = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unread-guard", daemon=True)

    def arm(self) -> None:
        """Take the memory of now as what the server needs, and begin to look."""
        self._baseline = self._memory()
        if self._baseline is None:
            log.warning("the server's memory cannot be read: max_unread_gb has no effect")
            return
        self._thread.start()

    def refusal(self) -> Overloaded | None:
        """Why a new request cannot be taken now; None when it can."""
        grown_gb = self._grown_gb
        if grown_gb is None:
            return None
        self._refused += 1
        return Overloaded(self._reason(grown_gb), RETRY_S)

    def look(self) -> None:
        """Compare the memory of now with the limit."""
        memory, now = self._memory(), self._clock()
        if memory is None or self._baseline is None:
            return
        grown_gb = (memory - self._baseline) / 1e9
        if grown_gb <= self._limits.grown_gb:
            if self._grown_gb is not None:
                self._say(logging.INFO, "requests are taken again: the server's memory is free", now)
            self._grown_gb = self._stuck_since = None
            return
        self._grown_gb = grown_gb
        self._say(logging.WARNING, f"new requests are refused: {self._reason(grown_gb)}", now)
        self._look_for_an_end(now, grown_gb)

    def _say(self, level: int, message: str, now: float) -> None:
        """Log each of the two levels every 10 s at most."""
        if now - self._logged_at.get(level, -math.inf) >= LOG_EVERY_S:
            self._logged_at[level] = now
            log.log(level, "%s", message)

    def _look_for_an_end(self, now: float, grown_gb: float) -> None:
        moves = abs(grown_gb - self._stuck_gb) > _MOVES * self._limits.grown_gb
        if not self._is_idle():
            self._stuck_since = None
        elif self._stuck_since is None or moves:
            self._stuck_since, self._stuck_gb, self._refused_before = now, grown_gb, self._refused
        elif now - self._stuck_since < self._limits.stuck_s or self._refused == self._refused_before:
            return
        elif not self._has_given_up:
            self._has_given_up = True
            self._give_up(f"{self._reason(grown_gb)}, and that for {self._limits.stuck_s:g} s with nothing in flight")

    def _reason(self, grown_gb: float) -> str:
        return (
            f"the server holds {grown_gb:.2f} GB more than at its start, as when clients do not read their answers "
            f"(max_unread_gb {self._limits.grown_gb:g})"
        )

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            self.look()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(2)
