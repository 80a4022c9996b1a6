"""What happens to a stream, in the order in which it happened: one thread writes to the client, others tell it why."""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue with one reader. `put` may be called by any thread and never blocks."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._woken = False
        self._gathers = False

    def put(self, items: Sequence[T], may_gather: bool = False) -> None:
        """Add items, which are taken together. Those that may gather do not wake a reader that gathers."""
        self._items.extend(items)
        if not (may_gather and self._gathers) and not self._woken:
            self._woken = True
            self._wake.put(None)

    def wait(self, timeout_s: float, gather: bool = False) -> None:
        """Wait at most `timeout_s` for an item; with `gather`, for one that may not gather."""
        # In this order, as in `put`: of an item put now either the writer sees who waits, or the reader sees the item.
        self._gathers = gather
        if gather or not self._items:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=max(0.0, timeout_s))
        self._woken = False

    def pop(self) -> T | None:
        """The oldest item, or None when there is none."""
        return self._items.popleft() if self._items else None
