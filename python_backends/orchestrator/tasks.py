"""Runs requests that are written as generators, on a few threads."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

log = logging.getLogger(__name__)
THREADS = 4
GRID_S = 0.002  # a wait that gathers ends at multiples of it: one wake-up of the thread for several tasks
CLOSE_S = 2.0


class Wait(NamedTuple):
    """What a task yields: it goes on when it is told something, at the latest at `until` of the monotonic clock. While
    it gathers, what may gather does not wake it."""

    until: float
    gathers: bool = False


class Task:
    """One generator, what it was told and has not taken yet. It always runs on the same thread.

    `tell` may be called by any thread and never blocks; `take` by the generator.
    """

    def __init__(self, thread: _Thread, steps: Generator[Wait, None, None] | None = None) -> None:
        self.steps = steps
        self.thread = thread
        self._told: deque[Any] = deque()
        self._woken = False
        self._gathers = False
        self.wake_at = self.timer_at = math.inf

    def tell(self, items: Sequence[Any], may_gather: bool = False) -> None:
        """Add items, which are taken together."""
        # First the items, then whether to wake; `resume` the other way round: one of both sides sees the other.
        self._told.extend(items)
        if not (may_gather and self._gathers) and not self._woken:
            self._woken = True
            self.thread.ready.put(self)

    @property
    def was_told(self) -> bool:
        """Whether there is something to take."""
        return bool(self._told)

    def take(self) -> Any | None:
        """The oldest item that was not taken yet, or None."""
        return self._told.popleft() if self._told else None

    def resume(self) -> bool:
        """Run to the next wait. False when there is none."""
        self._woken = self._gathers = False
        assert self.steps is not None
        try:
            wait = next(self.steps)
        except StopIteration:
            return False
        except Exception:
            log.exception("a task failed")
            return False
        self._gathers = wait.gathers
        self.wake_at = math.ceil(wait.until / GRID_S) * GRID_S if wait.gathers else wait.until
        return True


class _Thread:
    """One thread, the tasks that may go on, and when the others want to."""

    def __init__(self) -> None:
        self.ready: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.tasks: set[Task] = set()
        self._timers: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self.thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            due = self._timers[0][0] - time.monotonic() if self._timers else None
            try:
                task = self.ready.get(timeout=None if due is None else max(0.0, due))
            except queue.Empty:
                pass
            else:
                if task is None:
                    return
                self._resume(task)
                del task  # or it would live until the next comes
            while self._timers and self._timers[0][0] <= time.monotonic():
                _, _, late = heapq.heappop(self._timers)
                late.timer_at = math.inf
                if late.wake_at <= time.monotonic():
                    self._resume(late)
                else:  # it was told something since, and waits for longer now
                    self._set_timer(late)
                del late

    def _resume(self, task: Task) -> None:
        if task in self.tasks:
            if task.resume():
                self._set_timer(task)
            else:
                self.tasks.discard(task)

    def _set_timer(self, task: Task) -> None:
        if task in self.tasks and task.wake_at < task.timer_at:
            task.timer_at = task.wake_at
            heapq.heappush(self._timers, (task.wake_at, next(self._numbers), task))


class Tasks:
    """A few threads, and which of them runs a task.

    Sending a response waits for the server to take it. One thread for all would add these waits up and hold up whoever
    comes after; a thread for each request costs more in switches than the responses do.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = [_Thread() for _ in range(threads)]
        self._next = itertools.cycle(self._threads)

    def new(self) -> Task:
        """A task that can be told things before it starts."""
        return Task(next(self._next))

    def start(self, task: Task, steps: Generator[Wait, None, None]) -> None:
        task.steps = steps
        task.thread.tasks.add(task)
        task.thread.ready.put(task)

    def close(self) -> None:
        """Wait at most CLOSE_S for tasks that run, then end the threads."""
        deadline = time.monotonic() + CLOSE_S
        while any(thread.tasks for thread in self._threads) and time.monotonic() < deadline:
            time.sleep(0.005)
        for thread in self._threads:
            thread.ready.put(None)
            thread.thread.join(max(0.1, deadline - time.monotonic()))
