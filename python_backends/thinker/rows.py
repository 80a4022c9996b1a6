"""Gathers a stream's hidden rows as they arrive from prefill chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass
class _Waiting:
    positions: np.ndarray
    filled: np.ndarray
    rows: np.ndarray | None
    done: Callable[[np.ndarray | None], None]


class RowCollector:
    """`receive` may be called from any thread; rows for a position that is already filled are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, stream: str, positions: np.ndarray, done: Callable[[np.ndarray | None], None]) -> None:
        """Call `done` with float32 [m, hidden] once all `positions` (ascending int64 [m]) are there.

        Rows without columns mean that they were lost: then `done` gets None.
        """
        with self._lock:
            self._waiting[stream] = _Waiting(positions, np.zeros(len(positions), dtype=bool), None, done)

    def forget(self, stream: str) -> None:
        with self._lock:
            self._waiting.pop(stream, None)

    def receive(self, stream: str, positions: np.ndarray, rows: np.ndarray) -> None:
        with self._lock:
            waiting = self._waiting.get(stream)
            if waiting is None:
                return
            if not rows.shape[1]:
                del self._waiting[stream]
        if not rows.shape[1]:
            waiting.done(None)
            return
        self._fill(stream, waiting, positions, rows)

    def _fill(self, stream: str, waiting: _Waiting, positions: np.ndarray, rows: np.ndarray) -> None:
        with self._lock:
            at = np.searchsorted(waiting.positions, positions)
            new = ~waiting.filled[at]
            if not new.all():
                at, rows = at[new], rows[new]
            if len(at) == len(waiting.positions):
                waiting.rows = rows
            elif len(at):
                if waiting.rows is None:
                    waiting.rows = np.empty((len(waiting.positions), rows.shape[1]), dtype=np.float32)
                together = at[-1] - at[0] + 1 == len(at)
                waiting.rows[slice(at[0], at[-1] + 1) if together else at] = rows
            waiting.filled[at] = True
            if not waiting.filled.all() or self._waiting.pop(stream, None) is None:
                return
        waiting.done(waiting.rows)
