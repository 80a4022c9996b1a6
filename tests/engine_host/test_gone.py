"""What an engine process frees when processes that it works with have ended: played engines in the product's host."""

from __future__ import annotations

import os
import signal
import time
import uuid
from dataclasses import asdict
from pathlib import Path

import pytest
import zmq

from python_backends.config.sampling import TalkerSampling, ThinkerSampling
from python_backends.config.stage import ChunkSchedule
from python_backends.connectors.zmq_link import ChunkReceiver
from python_backends.serving.replicas import Replicas
from python_backends.serving.supervisor import EngineLaunch, EngineSupervisor
from tests.e2e.test_profiles_rules import PLAYED
from tests.server import ROOT, wait_until

PATIENT_S = 60
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Starts the engine process of a stage; gives its calls and its process id."""
    monkeypatch.setenv("PLAYED_PYTHON", PLAYED["PLAYED_PYTHON"])
    (tmp_path / "config.json").write_text("{}")
    started = []

    def start(stage: str) -> tuple[Replicas, int]:
        python, options = PLAYED["ENGINE_PYTHON"], {"step_ms": 1}
        launch = EngineLaunch(stage, f"{stage}-0", str(tmp_path), python, ROOT, tmp_path, 60.0, options, {})
        supervisor, calls = EngineSupervisor(launch, lambda instance: None), Replicas(tmp_path, stage)
        started.extend((supervisor, calls))
        supervisor.start()
        supervisor.wait_ready()
        return calls, calls.status()[0]["pid"]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def receiver(tmp_path_factory):
    """Makes a socket of the kind that stages and the BLS model receive at, with a directory of its own."""
    context, directory = zmq.Context(), tmp_path_factory.mktemp("r")
    yield lambda: ChunkReceiver(context, f"ipc://{directory}/{uuid.uuid4().hex[:8]}")
    context.destroy(linger=0)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def another_than(calls: Replicas, pid: int) -> int:
    """Wait for an engine that serves and is not `pid`; its process id."""
    found: list[int] = []
    wait_until(lambda: bool(found) or found.extend(one["pid"] for one in calls.status()), PATIENT_S, "an engine")
    if found[0] != pid:
        return found[0]
    time.sleep(0.01)
    return another_than(calls, pid)


def test_a_killed_engine_is_forked_again_from_what_has_imported_its_libraries(engine):
    calls, first = engine("thinker")
    server = parent_of(first)
    os.kill(first, signal.SIGKILL)
    assert parent_of(another_than(calls, first)) == server


def test_an_engine_ends_with_its_fork_server_and_both_are_started_again(engine):
    calls, first = engine("thinker")
    server = parent_of(first)
    os.kill(server, signal.SIGKILL)
    second = another_than(calls, first)
    assert parent_of(second) != server
    wait_until(lambda: not Path(f"/proc/{first}").exists(), PATIENT_S, "the engine has ended with its server")


def counts(pid: int) -> tuple[int, int]:
    """Threads and open descriptors of a process."""
    return tuple(len(list(Path(f"/proc/{pid}/{name}").iterdir())) for name in ("task", "fd"))


def speak(calls: Replicas, reply: ChunkReceiver, sink: ChunkReceiver) -> None:
    """One request to a Thinker whose ids go to `sink`, to its end."""
    sampling = asdict(ThinkerSampling(max_tokens=3))
    payload = {"stream_id": uuid.uuid4().hex, "reply": reply.address, "sink": sink.address, "seed": 0}
    (result,) = calls.open([payload | {"messages": MESSAGES, "sampling": sampling}])
    assert "data" in result, result
    for receiver in (sink, reply):
        while not any(chunk.finished for chunk in receiver.receive(PATIENT_S * 1000)):
            pass


def test_twenty_restarts_of_a_later_stage_leave_no_thread_and_no_descriptor_before_it(engine, receiver):
    calls, pid = engine("thinker")
    reply, sink = receiver(), receiver()
    speak(calls, reply, sink)
    before = counts(pid)
    for _ in range(20):
        sink.close()  # as an engine process does by ending; the next has another address
        sink = receiver()
        speak(calls, reply, sink)
    wait_until(lambda: counts(pid) <= before, PATIENT_S, f"no more than {before} threads and descriptors")


def test_slots_of_an_opener_that_is_gone_are_freed_and_no_others(engine, receiver):
    calls, _ = engine("talker")
    gone, here, sink = receiver(), receiver(), receiver()
    common = {"sink": sink.address, "speaker": "ethan", "seed": 0, "sampling": asdict(TalkerSampling())}
    common["schedule"] = asdict(ChunkSchedule(4, 25))
    openers = [gone] * 320 + [here] * 2
    opened = calls.open(
        [common | {"stream_id": str(number), "reply": one.address} for number, one in enumerate(openers)]
    )
    assert all("data" in result for result in opened), opened[0]
    assert calls.open_streams() == 322
    gone.close()
    wait_until(lambda: calls.open_streams() == 2, PATIENT_S, "the slots of the opener that is gone are free")
    wait_until(lambda: calls.status()[0]["streams"] == 2, PATIENT_S, "they are free in the engine too")
