"""What ends the server: which dead stub, and a runtime directory that is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from python_backends.serving import server_end
from python_backends.serving.server_end import ANSWERS, STAGE, EndOfServer, RuntimeDirWatch, StubWatch
from tests.server import PATIENT_S, wait_until


@pytest.fixture
def died():
    return []


@pytest.fixture(params=[ANSWERS, STAGE])
def kind(request):
    return request.param


@pytest.fixture
def watch(tmp_path, kind, died):
    watch = StubWatch(tmp_path, kind, died.append)
    yield watch
    watch.close()


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_stub_that_died_is_noticed(tmp_path, kind, died, watch):
    path = server_end.announce(tmp_path, "some_0_0", kind)
    assert not watch._has_died(path), "this process runs"
    _, server = path.read_text().split()
    path.write_text(f"{dead_process()} {server}")
    wait_until(lambda: died, PATIENT_S, "the death is noticed")
    assert died[0] == "some_0_0"


def test_stubs_of_the_other_kind_are_not_watched(tmp_path, kind, watch):
    other = server_end.announce(tmp_path, "some_0_0", STAGE if kind == ANSWERS else ANSWERS)
    assert not other.match(f"*{watch._kind}")


def test_a_stub_that_withdrew_may_end(tmp_path, kind, watch):
    path = server_end.announce(tmp_path, "qwen3_omni_0_0", kind)
    assert path.exists()
    server_end.withdraw(tmp_path, "qwen3_omni_0_0", kind)
    assert not path.exists() and not watch._has_died(path)


def test_what_an_earlier_server_left_says_nothing(tmp_path, kind, watch):
    path = tmp_path / f"qwen3_omni_0_0{kind}"
    path.write_text(f"{dead_process()} 1")
    assert not watch._has_died(path)
    path.write_text("")
    assert not watch._has_died(path)


@pytest.fixture
def signals(monkeypatch):
    sent = []
    monkeypatch.setattr(server_end, "_signal", sent.append)
    monkeypatch.setattr(server_end, "_siblings", lambda: [])
    return sent


def test_an_end_that_nobody_asked_for_is_in_order_and_then_a_kill(signals):
    """Operating, every end that nobody asked for: Triton that is told to stop would end with 0."""
    end = EndOfServer()
    end.begin("code2wav")
    end.begin("code2wav")
    assert signals == [signal.SIGTERM], "once, though several notice"
    end.finish()
    assert signals == [signal.SIGTERM, signal.SIGKILL]


def test_an_end_that_somebody_asked_for_is_left_alone(signals):
    EndOfServer().finish()
    assert not signals


def replace_by_another(directory):
    directory.rename(directory.with_name("away"))
    directory.mkdir()
    (directory / "some.replies").touch()


@pytest.mark.parametrize(
    "breaks",
    [shutil.rmtree, lambda directory: os.unlink(directory / "some.replies"), replace_by_another],
    ids=["directory", "socket", "replaced"],
)
def test_a_runtime_directory_that_is_gone_is_noticed(tmp_path, breaks):
    """Operating, runtime directory removed under a running server."""
    directory, losses = tmp_path / "run", []
    directory.mkdir()
    (directory / "some.replies").touch()
    watch = RuntimeDirWatch(directory, ["some.replies"], lambda: losses.append(1))
    try:
        (directory / "other.calls").touch()
        (directory / "other.calls").unlink()
        assert not losses
        breaks(directory)
        wait_until(lambda: losses, PATIENT_S, "the loss is noticed")
    finally:
        watch.close()
    assert losses == [1]
