"""The server's memory against its limit: what is refused, when it is taken again, when the server ends."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from python_backends.serving.unread_guard import UnreadGuard, UnreadLimits, anonymous_bytes_of
from tests.server import wait_until

GB = 10**9


class World:
    """What a guard sees, set by the test."""

    def __init__(self) -> None:
        self.memory: int | None = 7 * GB
        self.is_idle = False
        self.now = 0.0
        self.reasons: list[str] = []
        self.guard = UnreadGuard(
            UnreadLimits(4.0, 30.0),
            lambda: self.memory,
            lambda: self.is_idle,
            self.reasons.append,
            lambda: self.now,
        )
        self.guard._thread.start = lambda: None  # the test looks itself
        self.guard.arm()

    def look(self, grown_gb: float, at: float | None = None) -> bool:
        """Whether a new request is refused after a look at that much memory."""
        self.memory, self.now = round((7 + grown_gb) * GB), self.now if at is None else at
        self.guard.look()
        return self.guard.refusal() is not None


@pytest.fixture
def world():
    return World()


def test_beyond_the_limit_requests_are_refused_and_below_it_taken_again(world):
    assert [world.look(grown) for grown in (0.0, 3.9, 4.1, 9.0, 3.9, 4.1)] == [False, False, True, True, False, True]
    refused = world.guard.refusal()
    assert refused.code == "overloaded"
    for words in ("holds 4.10 GB more than at its start", "max_unread_gb 4", "; retry_after_s=5"):
        assert words in str(refused)


def test_before_it_is_armed_nothing_is_refused():
    guard = UnreadGuard(UnreadLimits(0.001, 0.0), lambda: 9 * GB, lambda: True, pytest.fail)
    guard.look()
    assert guard.refusal() is None
    guard.close()


def test_memory_that_stays_up_with_nothing_in_flight_ends_the_server_once(world):
    world.look(5, at=0)
    world.look(5, at=100)
    assert not world.reasons, "what runs goes on"
    world.is_idle = True
    world.look(5, at=110)
    world.look(5, at=139)
    assert not world.reasons
    world.look(5, at=140)
    world.look(5, at=200)
    assert len(world.reasons) == 1 and "for 30 s with nothing in flight" in world.reasons[0]


@pytest.mark.parametrize(
    ("runs", "grown_gb", "ends_at"),
    [(True, 5.0, 55), (False, 3.0, 55), (False, 4.9, 50), (False, 4.97, 30)],
    ids=["a request runs", "it comes down", "somebody reads", "it only wavers"],
)
def test_the_time_begins_anew_when(world, runs, grown_gb, ends_at):
    world.is_idle = True
    world.look(5, at=0)
    world.is_idle = not runs
    world.look(grown_gb, at=20)
    world.is_idle = True
    for at in range(25, ends_at):
        world.look(max(4.9, grown_gb), at=at)
    assert not world.reasons
    world.look(max(4.9, grown_gb), at=ends_at)
    assert world.reasons


def test_a_server_that_nobody_asks_does_not_end(world):
    world.is_idle, world.memory = True, 12 * GB
    for second in range(100):
        world.now = second
        world.guard.look()
    assert not world.reasons
    assert world.guard.refusal() is not None
    world.guard.look()
    assert len(world.reasons) == 1


def test_the_log_has_a_line_every_ten_seconds_at_most(world, caplog):
    caplog.set_level(logging.INFO)
    for tenth in range(250):
        world.look(5 if tenth % 2 else 3, at=tenth / 10)
    refused = [record for record in caplog.records if "new requests are refused" in record.message]
    taken = [record for record in caplog.records if "taken again" in record.message]
    assert len(refused) == 3 and len(taken) == 3
    assert "holds 5.00 GB" in refused[0].message


def test_memory_that_cannot_be_read_refuses_nobody(world, caplog):
    world.memory = None
    world.guard.look()
    assert world.guard.refusal() is None
    unread = UnreadGuard(UnreadLimits(1.0, 1.0), lambda: None, lambda: True, pytest.fail)
    unread.arm()
    assert "max_unread_gb has no effect" in caplog.text
    unread.look()
    assert unread.refusal() is None
    unread.close()


def test_its_thread_looks_by_itself():
    memory = [0]
    guard = UnreadGuard(UnreadLimits(1.0, 60.0), lambda: memory[0], lambda: True, pytest.fail)
    guard.arm()
    try:
        memory[0] = 2 * GB
        wait_until(lambda: guard.refusal() is not None, 2, "it has seen the memory grow")
        memory[0] = GB
        wait_until(lambda: guard.refusal() is None, 2, "it has seen the memory fall")
    finally:
        guard.close()


def test_a_process_tells_its_anonymous_memory():
    script = "import sys; input(); held = bytearray(50_000_000); print('held', flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        before = anonymous_bytes_of(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"held\n"
        assert 45e6 < anonymous_bytes_of(process.pid) - before < 60e6
    finally:
        process.communicate(b"\n", 60)
    assert anonymous_bytes_of(process.pid) is None
