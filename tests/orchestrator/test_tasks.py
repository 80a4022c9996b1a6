"""Requests as generators: who is woken, when, and what a task that fails or blocks does to others."""

import random
import threading
import time

import pytest

from python_backends.orchestrator.tasks import Tasks, Wait
from tests.server import wait_until

LONG_S = 600.0


@pytest.fixture
def tasks():
    tasks = Tasks()
    yield tasks
    tasks.close()


def collect(task, got, end=None, gather_s=None):
    """A task that takes what it is told, with the time, until it is told `end`."""
    while True:
        if gather_s is not None or not task.was_told:
            wait_s = LONG_S if gather_s is None else gather_s
            yield Wait(time.monotonic() + wait_s, gathers=gather_s is not None)
        while (item := task.take()) is not None:
            got.append((item, time.monotonic()))
            if item == end:
                return


def test_what_is_told_before_the_start_is_not_lost(tasks):
    task, got = tasks.new(), []
    task.tell(["early"])
    tasks.start(task, collect(task, got, end="late"))
    task.tell(["late"])
    wait_until(lambda: [item for item, _ in got] == ["early", "late"], 60, "both items")


def test_what_may_gather_waits_for_its_time_and_what_may_not_takes_it_along(tasks):
    task, got = tasks.new(), []
    tasks.start(task, collect(task, got, end="end", gather_s=LONG_S))
    task.tell(["first"])
    wait_until(lambda: len(got) == 1, 60, "the first item")
    wait_until(lambda: task.wake_at > time.monotonic() + LONG_S / 2, 60, "the task gathers")
    for number in range(5):
        task.tell([number], may_gather=True)
    assert len(got) == 1
    task.tell(["end"])
    wait_until(lambda: len(got) == 7, 60, "all items")
    assert [item for item, _ in got] == ["first", 0, 1, 2, 3, 4, "end"]


def test_what_gathers_leaves_when_its_time_is_up(tasks):
    task, got = tasks.new(), []
    tasks.start(task, collect(task, got, end="end", gather_s=0.05))
    task.tell(["x"], may_gather=True)
    wait_until(lambda: len(got) == 1, 60, "the item")
    task.tell(["end"])


def test_no_item_waits_for_a_timer_whoever_tells_at_the_same_time(tasks):
    """Tasks that gather and do not in turn: an item that was lost between both would wait for ten minutes."""
    everything = []
    for _ in range(20):
        task, got = tasks.new(), []
        everything.append((task, got))

        def steps(task=task, got=got):
            while len(got) < 300:
                gathers = random.random() < 0.5
                if gathers or not task.was_told:
                    yield Wait(time.monotonic() + (0.001 if gathers else LONG_S), gathers)
                while (item := task.take()) is not None:
                    got.append(item)

        tasks.start(task, steps())

    def tell(seed):
        randomly = random.Random(seed)
        for at in range(100):
            for task, _ in everything:
                task.tell([(seed, at)], may_gather=randomly.random() < 0.7)

    tellers = [threading.Thread(target=tell, args=(seed,)) for seed in range(3)]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()
    wait_until(lambda: all(len(got) == 300 for _, got in everything), 60, "every item is taken")
    for _, got in everything:
        for seed in range(3):
            assert [at for teller, at in got if teller == seed] == list(range(100)), "in the order in which it was told"


def test_a_task_that_fails_or_blocks_holds_up_no_task_of_another_thread(tasks):
    gate, got = threading.Event(), []

    def fails():
        raise RuntimeError("on purpose")
        yield

    def blocks():
        gate.wait(60)
        yield Wait(time.monotonic())

    try:
        # One task a thread in turn: of the last three one follows on the thread of the task that failed.
        for steps in (fails(), blocks()):
            tasks.start(tasks.new(), steps)
        for _ in range(3):
            task = tasks.new()
            task.tell(["end"])
            tasks.start(task, collect(task, got, end="end"))
        wait_until(lambda: len(got) == 3, 60, "the others end")
    finally:
        gate.set()
