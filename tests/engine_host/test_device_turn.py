"""Stages that share a device load one after another: real processes, locks of the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from python_backends.connectors.runtime_dir import remove_runtime_dir_if_empty
from python_backends.engine_host.device_turn import device_turn
from python_backends.serving.supervisor import EngineLaunch, EngineSupervisor

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import signal, sys
from pathlib import Path
from python_backends.engine_host.device_turn import device_turn
with device_turn(Path(sys.argv[1]), sys.argv[2].split(","), lambda: None):
    print("held", flush=True)
    signal.pause()
"""
OPTIONS = {"device": "cpu", "dtype": "float32", "max_num_seqs": 1}


@pytest.fixture
def hold(tmp_path):
    """A process that holds devices, as an engine that loads does; it has them when this returns."""
    started = []

    def start(devices):
        command = [sys.executable, "-c", HOLDER, str(tmp_path), devices]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def engine(tmp_path, tiny_checkpoint):
    started = []

    def start(instance, devices, timeout_s):
        launch = EngineLaunch(
            "code2wav", instance, str(tiny_checkpoint), sys.executable, ROOT, tmp_path, timeout_s, OPTIONS, {},
            devices=devices,
        )  # fmt: skip
        started.append(EngineSupervisor(launch, lambda instance: None))
        started[-1].start()
        return started[-1]

    yield start
    for supervisor in started:
        supervisor.close()


def until(condition, limit_s=120):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_engines_of_one_device_load_one_after_another_and_a_killed_holder_frees_it(hold, engine, capfd):
    holder = hold("0,1")
    waits, other = engine("code2wav-0", ("1",), 60.0), engine("code2wav-1", ("2",), 60.0)
    seen = []
    until(
        lambda: (
            seen.append(capfd.readouterr().err) or "waits to load: another engine loads on device 1" in "".join(seen)
        )
    )
    other.wait_ready()
    assert not waits._ready.is_set(), "its device is still held, that of the other never was"
    os.kill(holder.pid, signal.SIGKILL)
    waits.wait_ready()
    seen.append(capfd.readouterr().err)
    assert "s for device 1" in "".join(seen).partition("waited")[2]


def test_time_waited_for_a_device_does_not_count_against_the_init_timeout(tmp_path, hold):
    """The engine here only takes its turn and says hello, so that its time-out can be short."""
    script = tmp_path / "engine"
    script.write_text(f"""#!{sys.executable}
import json, signal, sys
import zmq
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from python_backends.engine_host.control import report
from python_backends.engine_host.device_turn import device_turn
config = json.loads(sys.stdin.readline())
context = zmq.Context()
def say(news):
    report(context, config["control"], news)
with device_turn(Path({str(tmp_path)!r}), config["devices"], lambda: say({{"waiting": True}})):
    say({{"hello": {{"load_s": 0.0}}}})
signal.pause()
""")
    script.chmod(0o755)
    timeout_s = 8.0
    holder = hold("0")
    launch = EngineLaunch("talker", "talker-0", "", str(script), ROOT, tmp_path, timeout_s, {}, {}, devices=("0",))
    supervisor = EngineSupervisor(launch, lambda instance: None)
    supervisor.start()
    try:
        assert not supervisor._ready.wait(timeout_s + 2), "the device is held"
        holder.kill()
        supervisor.wait_ready()
        assert supervisor.instance_epoch == "talker-0@1", "the first process was never killed"
    finally:
        supervisor.close()


def test_a_turn_ends_with_its_load_even_if_a_child_has_the_file_open(tmp_path):
    read, write = os.pipe()
    with device_turn(tmp_path, ["0"], lambda: None):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent closes its end
            os._exit(0)
    os.close(read)
    taken = threading.Event()

    def take():
        with device_turn(tmp_path, ["0"], lambda: None):
            taken.set()

    try:
        threading.Thread(target=take, daemon=True).start()
        assert taken.wait(60)
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_the_locks_files_go_with_the_runtime_directory(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    with device_turn(directory, ["1", "0"], lambda: None):
        pass
    other = directory / "talker-0-1.calls"
    other.touch()
    remove_runtime_dir_if_empty(directory)
    assert sorted(path.name for path in directory.iterdir()) == ["device-0.lock", "device-1.lock", other.name]
    other.unlink()
    remove_runtime_dir_if_empty(directory)
    assert not directory.exists()
