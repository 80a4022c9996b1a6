"""What is let in, what waits, what is refused."""

from __future__ import annotations

import json

import pytest

from python_backends.config.errors import Overloaded
from python_backends.orchestrator.admission import Admission
from python_backends.orchestrator.limits import Limits
from python_backends.orchestrator.request import parse_request
from python_backends.orchestrator.stream import Stream


def stream(name, modalities=("text", "audio")):
    body = {"messages": [{"role": "user", "content": "Hi"}], "modalities": list(modalities)}
    return Stream(name, parse_request(json.dumps(body)), None, None)


@pytest.fixture
def admitted():
    """Names of the streams that were let in."""
    return []


def admission_with(admitted, **limits):
    return Admission(Limits(**limits), lambda item: admitted.append(item.stream_id))


def taken(admitted):
    names = list(admitted)
    admitted.clear()
    return names


def test_beyond_the_limit_streams_wait_in_order_and_then_are_refused(admitted):
    admission = admission_with(admitted, max_in_flight=2, max_queued=2)
    streams = [stream(str(n)) for n in range(5)]
    for item in streams[:4]:
        admission.offer(item)
    assert taken(admitted) == ["0", "1"]
    with pytest.raises(Overloaded, match=r"2 requests in flight and 2 waiting; retry_after_s=\d+$"):
        admission.offer(streams[4])
    admission.leave(streams[1])
    assert taken(admitted) == ["2"]
    admission.offer(streams[4])
    admission.leave(streams[0])
    admission.leave(streams[2])
    assert taken(admitted) == ["3", "4"]


def test_without_a_queue_an_idle_server_still_takes_requests(admitted):
    admission = admission_with(admitted, max_in_flight=1, max_queued=0)
    first = stream("a")
    admission.offer(first)
    with pytest.raises(Overloaded):
        admission.offer(stream("b"))
    admission.leave(first)
    admission.offer(stream("c"))


def test_one_that_gives_up_waiting_makes_room_in_the_queue(admitted):
    admission = admission_with(admitted, max_in_flight=1, max_queued=1)
    admission.offer(stream("a"))
    waiting = stream("b")
    admission.offer(waiting)
    admission.leave(waiting)
    admission.offer(stream("c"))
    assert taken(admitted) == ["a"]


def test_a_stages_limit_holds_only_those_that_need_it(admitted):
    admission = admission_with(admitted, max_in_flight=10, stages={"talker": 1})
    speaking, waiting, silent = stream("a"), stream("b"), stream("c", ["text"])
    for item in (speaking, waiting, silent):
        admission.offer(item)
    assert taken(admitted) == ["a", "c"]
    admission.leave_stage(speaking, "thinker")
    assert taken(admitted) == []
    admission.leave_stage(speaking, "talker")
    assert taken(admitted) == ["b"]
    admission.leave_stage(speaking, "talker")
    admission.leave(speaking)
    third = stream("d")
    admission.offer(third)
    assert taken(admitted) == []


def test_the_retry_hint_follows_how_long_requests_take(admitted, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    admission = admission_with(admitted, max_in_flight=1, max_queued=0)
    for n in range(40):
        item = stream(str(n))
        item.started = now[0]
        admission.offer(item)
        now[0] += 20.0
        admission.leave(item)
    admission.offer(stream("x"))
    with pytest.raises(Overloaded, match="retry_after_s=20$"):
        admission.offer(stream("y"))
