"""Which replica a stream is given to, with control servers of the test as engine processes."""

from __future__ import annotations

import threading

import pytest
import zmq

from python_backends.config.errors import InvalidRequest, Overloaded
from python_backends.engine_host.control import ControlServer, answer
from python_backends.serving.replicas import Replicas, every_stage_runs


class PlayedEngine:
    """Answers calls like an engine process; holds as many streams as it opened."""

    def __init__(self, context, directory, name, error=None, hang=None):
        self.name, self.open, self.error, self.hang = name, 0, error, hang
        self.path = directory / f"{name}.calls"
        handlers = {
            "open_all": self._open_all,
            "abort": dict,
            "load": lambda payload: {"open": self.open},
            "status": self._status,
        }
        self._server = ControlServer(context, f"ipc://{directory}/{name}.ctl", f"ipc://{self.path}", handlers, dict)
        self._server.hello({})

    def _open(self, payload):
        if self.error is not None:
            raise self.error
        if self.hang is not None:
            self.hang.wait(60)
        self.open += 1
        return {"instance": self.name}

    def _open_all(self, payload):
        return {"answers": [answer(self._open, stream) for stream in payload["streams"]]}

    def _status(self, payload):
        return {"instance": self.name, "open": self.open}

    def die(self, leave_socket=False):
        self._server.close()
        if not leave_socket:
            self.path.unlink()


@pytest.fixture
def engines(tmp_path):
    context, started = zmq.Context(), []

    def start(name, **facts):
        started.append(PlayedEngine(context, tmp_path, name, **facts))
        return started[-1]

    yield start
    for engine in started:
        engine.die(leave_socket=True)
    context.destroy(linger=0)


def give(replicas, *names):
    """Open streams by one call; the names of the engines that took them."""
    results = replicas.open([{"stream_id": name} for name in names])
    return [result["instance"] for result in results]


@pytest.fixture
def replicas(tmp_path):
    replicas = Replicas(tmp_path, "talker")
    yield replicas
    replicas.close()


def test_a_stream_goes_to_the_least_loaded(engines, replicas):
    first, second, other = engines("talker-0-1"), engines("talker-1-1"), engines("code2wav-0-1")
    given = [give(replicas, str(n))[0] for n in range(2)] + give(replicas, *"abcd")
    assert given == ["talker-0-1", "talker-1-1"] * 3 and other.open == 0
    second.open = 0
    assert give(replicas, "x") == ["talker-1-1"]
    assert (replicas.count(), replicas.open_streams(), first.open) == (2, 4, 3)
    assert [status["instance"] for status in replicas.status()] == ["talker-0-1", "talker-1-1"]


@pytest.mark.parametrize("leave_socket", [True, False], ids=["just now", "a while ago"])
def test_a_dead_one_is_passed_over_until_it_is_back(engines, replicas, leave_socket, monkeypatch):
    monkeypatch.setattr("python_backends.serving.replicas.CONNECT_TIMEOUT_S", 1.0)
    first, _ = engines("talker-0-1"), engines("talker-1-1")
    give(replicas, "a")
    first.die(leave_socket)
    assert give(replicas, *"bcd") == ["talker-1-1"] * 3
    first.path.unlink(missing_ok=True)
    engines("talker-0-2")
    assert give(replicas, "e") == ["talker-0-2"]


def test_a_first_call_waits_for_an_engine_that_is_slow_to_accept(engines, replicas, tmp_path):
    """As on a machine that is busy: the engine has its socket, and a connection takes more than a second."""
    path = tmp_path / "talker-0-1.calls"
    path.touch()
    late = threading.Timer(1.5, engines("elsewhere").path.rename, [path])
    late.start()
    assert give(replicas, "a") == ["elsewhere"]
    late.join()


def test_the_model_is_ready_while_every_stage_has_a_living_replica(engines, tmp_path):
    first, _, thinker = engines("talker-0-1"), engines("talker-1-1"), engines("thinker-0-1")
    assert every_stage_runs(tmp_path, ["thinker", "talker"])
    first.die()
    assert every_stage_runs(tmp_path, ["thinker", "talker"])
    thinker.die()
    assert not every_stage_runs(tmp_path, ["thinker", "talker"])
    engines("thinker-0-2")
    assert every_stage_runs(tmp_path, ["thinker", "talker"])


def test_a_full_one_passes_the_stream_on(engines, replicas):
    engines("talker-0-1", error=Overloaded("full"))
    engines("talker-1-1")
    assert give(replicas, *"abc") == ["talker-1-1"] * 3


def test_a_wrong_request_is_refused_once(engines, replicas):
    engines("talker-0-1", error=InvalidRequest("speaker", "unknown"))
    other = engines("talker-1-1")
    (refusal,) = replicas.open([{"stream_id": "a"}])
    assert refusal.code == "invalid_request" and "speaker" in str(refusal) and other.open == 0


def test_when_all_are_full_or_none_runs_the_caller_is_told(engines, replicas):
    (refusal,) = replicas.open([{"stream_id": "a"}])
    assert refusal.code == "stage_failed" and "talker is not running" in str(refusal)
    engines("talker-0-1", error=Overloaded("full"))
    engines("talker-1-1", error=Overloaded("full"))
    assert [refusal.code for refusal in replicas.open([{"stream_id": name} for name in "ab"])] == ["overloaded"] * 2


def test_one_that_dies_during_the_call_costs_its_call_no_more_than_a_moment(engines, replicas):
    hang = threading.Event()
    first = engines("talker-0-1", hang=hang)
    engines("talker-1-1").open = 1
    threading.Timer(0.2, first.path.unlink).start()  # its supervisor sees that it died
    assert give(replicas, "a") == ["talker-1-1"]
    hang.set()


def test_what_cannot_be_packed_fails_alone(engines, tmp_path):
    engines("thinker-0-1")
    replicas = Replicas(tmp_path, "thinker")
    good, huge, surrogate = {"stream_id": "a"}, {"stream_id": "b", "n": 10**40}, {"stream_id": "\ud800"}
    results = replicas.open([good, huge, surrogate, good])
    assert [isinstance(result, InvalidRequest) for result in results] == [False, True, True, False]
    assert results[0]["instance"] == results[3]["instance"] == "thinker-0-1"
    replicas.close()
