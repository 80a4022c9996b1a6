"""Which dead stub takes the server down."""

from __future__ import annotations

import subprocess
import sys

import pytest

from python_backends.serving import server_end
from tests.server import wait_until


@pytest.fixture
def ended(monkeypatch):
    calls = []
    monkeypatch.setattr(server_end, "end_the_server", lambda stub_of, at_once=False: calls.append((stub_of, at_once)))
    return calls


@pytest.fixture
def watch(tmp_path):
    watch = server_end.AnsweringModels(tmp_path)
    yield watch
    watch.close()


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_stub_that_died_ends_the_server(tmp_path, ended, watch):
    server_end.announce(tmp_path, "qwen3_omni_0_0")
    path = tmp_path / "qwen3_omni_0_0.alive"
    assert not watch._has_died(path), "this process runs"
    _, server = path.read_text().split()
    path.write_text(f"{dead_process()} {server}")
    wait_until(lambda: ended, 5, "the death is noticed")
    assert ended[0] == ("qwen3_omni_0_0", True)


def test_a_stub_that_withdrew_may_end(tmp_path, watch):
    server_end.announce(tmp_path, "qwen3_omni_0_0")
    path = tmp_path / "qwen3_omni_0_0.alive"
    assert path.exists()
    server_end.withdraw(tmp_path, "qwen3_omni_0_0")
    assert not path.exists() and not watch._has_died(path)


def test_what_an_earlier_server_left_says_nothing(tmp_path, watch):
    path = tmp_path / "qwen3_omni_0_0.alive"
    path.write_text(f"{dead_process()} 1")
    assert not watch._has_died(path)
    path.write_text("")
    assert not watch._has_died(path)
