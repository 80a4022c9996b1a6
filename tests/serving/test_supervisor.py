"""Whatever goes wrong with an engine process: the first start fails in words, a later one is tried again."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from pathlib import Path

import pytest

from python_backends.config.errors import StageFailed
from python_backends.serving import supervisor as supervisor_module
from python_backends.serving.supervisor import FOR_TRITON_ALONE, SHARED_MEMORY, EngineLaunch, EngineSupervisor
from tests.server import PATIENT_S

ENGINE = """#!{python}
import json, os, sys, time
import msgspec, zmq
config = json.loads(sys.stdin.readline())
socket = zmq.Context().socket(zmq.PUSH)
socket.connect(config["control"])
while True:
    socket.send(msgspec.msgpack.encode({hello}))
    time.sleep(0.1)
"""
LITTER = '{"hello": {"load_s": 0.0 * len(__import__("tempfile").mkdtemp(prefix=f"left-{os.getpid()}-"))}}'
SHARED = (
    '{"hello": {"load_s": 0.0 * sum(open(f"{place}", "w").write("") for place in (os.environ["TMPDIR"] + "/vllm_dist_" '
    '+ config["model"], "/dev/shm/vllm_dist_" + config["model"] + "-tp:0-[0-1]-cpushm_0"))}}'
)
HELLO = '{"hello": {"load_s": 0.0, "pid": os.getpid()}}'


@pytest.fixture
def supervise(tmp_path):
    started = []

    def start(hello=HELLO, directory=tmp_path, on_death=lambda instance: None, model=""):
        engine = tmp_path / "engine"
        if hello is not None:
            engine.write_text(ENGINE.format(python=sys.executable, hello=hello))
            engine.chmod(0o755)
        launch = EngineLaunch("talker", "talker-0", model, str(engine), Path.cwd(), directory, PATIENT_S, {}, {})
        started.append(EngineSupervisor(launch, on_death))
        started[-1].start()
        return started[-1]

    yield start
    for supervisor in started:
        supervisor.close()


def until(condition):
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"hello": None}, "FileNotFoundError"),
        ({"directory": Path("/nowhere/at/all")}, "ZMQError"),
        ({"directory": Path("/tmp") / ("x" * 120)}, "ZMQError"),
        ({"hello": '{"hello": {}}'}, "KeyError"),
        ({"hello": "sys.exit(3)"}, "ended with code 3 before it was ready"),
    ],
    ids=["no interpreter", "no directory", "long socket name", "wrong hello", "ends"],
)
def test_a_first_start_that_fails_says_why(supervise, facts, reason):
    started = time.monotonic()
    with pytest.raises(StageFailed, match=f"talker-0: .*{reason}"):
        supervise(**facts).wait_ready()
    assert time.monotonic() - started < PATIENT_S


@pytest.mark.parametrize("name", FOR_TRITON_ALONE)
def test_how_triton_frees_memory_is_not_how_an_engine_does(supervise, monkeypatch, name):
    monkeypatch.setenv(name, "131072")
    monkeypatch.setenv("MALLOC_PERTURB_", "0")
    supervisor = supervise()
    supervisor.wait_ready()
    environment = Path(f"/proc/{supervisor._process.pid}/environ").read_bytes()
    assert f"{name}=".encode() not in environment and b"MALLOC_PERTURB_" in environment


def test_an_engine_leaves_its_temporary_files_to_its_supervisor(supervise, tmp_path):
    """Operating, files left in TMPDIR: an engine has one of its own, which goes with it, also when it is killed."""
    supervisor = supervise(LITTER)
    supervisor.wait_ready()
    entries = Path(f"/proc/{supervisor._process.pid}/environ").read_bytes().decode().split("\0")
    environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    directory = supervisor.temporary_dir
    assert environment["TMPDIR"] == str(directory) and directory.parent == tmp_path
    assert not environment["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path)), "what is compiled outlives a server"
    (first,) = directory.iterdir()
    os.kill(supervisor._process.pid, signal.SIGKILL)
    until(lambda: supervisor.instance_epoch == "talker-0@2" and supervisor._ready.is_set())
    assert not first.exists() and len(list(directory.iterdir())) == 1, "a restart begins with an empty one"
    supervisor.close()
    assert not directory.exists()


def test_shared_memory_of_killed_workers_goes_with_their_engine(supervise):
    """Operating, files left: vLLM's workers on a CPU share memory under the name of a `vllm_dist_` file in TMPDIR."""
    name = uuid.uuid4().hex
    shared = SHARED_MEMORY / f"vllm_dist_{name}-tp:0-[0-1]-cpushm_0"
    of_another = SHARED_MEMORY / f"vllm_dist_{uuid.uuid4().hex}-tp:0-[0-1]-cpushm_0"
    of_another.touch()
    try:
        supervisor = supervise(SHARED, model=name)
        supervisor.wait_ready()
        first = shared.stat().st_ino
        os.kill(supervisor._process.pid, signal.SIGKILL)
        until(lambda: supervisor.instance_epoch == "talker-0@2" and supervisor._ready.is_set())
        assert shared.stat().st_ino != first
        supervisor.close()
        assert not shared.exists() and of_another.exists()
    finally:
        of_another.unlink()


def test_waiting_ends_when_it_is_closed(supervise):
    supervisor = supervise('{"beat": 1}')
    supervisor.close()
    with pytest.raises(StageFailed, match="closed before it was ready"):
        supervisor.wait_ready()


def test_a_restart_that_fails_is_logged_and_tried_again(supervise, tmp_path, caplog):
    deaths = []
    supervisor = supervise(on_death=deaths.append)
    supervisor.wait_ready()
    (tmp_path / "engine").rename(tmp_path / "away")
    os.kill(supervisor._process.pid, signal.SIGKILL)
    until(lambda: supervisor.instance_epoch == "talker-0@2")
    until(lambda: "could not be run (FileNotFoundError" in caplog.text)
    (tmp_path / "away").rename(tmp_path / "engine")
    supervisor._ready.wait(PATIENT_S)
    supervisor.wait_ready()
    assert deaths == ["talker-0@1"]


def test_an_error_while_it_serves_restarts_it(supervise):
    def fail_once(instance):
        deaths.append(instance)
        if len(deaths) == 1:
            raise RuntimeError("nobody to tell")

    deaths = []
    supervisor = supervise(on_death=fail_once)
    supervisor.wait_ready()
    os.kill(supervisor._process.pid, signal.SIGKILL)
    until(lambda: supervisor.instance_epoch != "talker-0@1" and supervisor._ready.is_set())
    assert deaths == ["talker-0@1"]


def test_an_engine_that_is_silent_for_too_long_is_killed_and_started_again(supervise, monkeypatch):
    """docs/deploy.md, Start and stop: after 30 s; here after 2."""
    monkeypatch.setattr(supervisor_module, "HEARTBEAT_LIMIT_S", 2.0)
    deaths = []
    supervisor = supervise(on_death=deaths.append)
    supervisor.wait_ready()
    os.kill(supervisor._process.pid, signal.SIGSTOP)
    until(lambda: supervisor.instance_epoch != "talker-0@1" and supervisor._ready.is_set())
    assert deaths[0] == "talker-0@1"
