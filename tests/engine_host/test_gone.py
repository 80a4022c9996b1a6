"""What an engine process frees when processes that it works with have ended: played engines in the product's host."""

from __future__ import annotations

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
