"""Heartbeats come while a call is slow, and end when calls are answered no more."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest
import zmq

from python_backends.connectors import wire
from python_backends.engine_host import control
from python_backends.engine_host.control import ControlServer

HEARTBEAT_S = 0.02


class Stub:
    def __init__(self, directory, stats=dict):
        self.context = zmq.Context()
        self.beats = self.context.socket(zmq.PULL)
        self.beats.bind(f"ipc://{directory}/ctl")
        self.release, self.entered = threading.Event(), threading.Event()
        self.server = ControlServer(
            self.context,
            f"ipc://{directory}/ctl",
            f"ipc://{directory}/calls",
            {"slow": self._slow, "odd": lambda payload: {"reply": object()}},
            stats,
        )
        self.server.hello({})
        self.calls = self.context.socket(zmq.DEALER)
        self.calls.connect(f"ipc://{directory}/calls")
        assert "hello" in self.message()

    def _slow(self, payload):
        self.entered.set()
        self.release.wait(120)
        return {}

    def call(self):
        self.calls.send_multipart(wire.pack({"id": 1, "op": "slow", "payload": {}}))
        assert self.entered.wait(60)

    def message(self, wait_s=60.0):
        return msgspec.msgpack.decode(self.beats.recv()) if self.beats.poll(wait_s * 1000) else None

    def silent(self):
        """Whether heartbeats end within a minute."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self.message(wait_s=20 * HEARTBEAT_S) is None:
                return True
        return False

    def close(self):
        self.release.set()
        self.server.close()
        self.context.destroy(linger=0)


@pytest.fixture
def stub(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "HEARTBEAT_S", HEARTBEAT_S)
    stub = Stub(tmp_path, lambda: {"open": 3})
    yield stub
    stub.close()


def test_a_slow_call_delays_no_heartbeat(stub):
    stub.call()
    for _ in range(20):
        assert stub.message() == {"heartbeat": {"open": 3}}
    assert not stub.calls.poll(0)
    stub.release.set()
    assert stub.calls.poll(60_000) and msgspec.msgpack.decode(stub.calls.recv()) == {"id": 1, "ok": {}}


def test_a_call_that_hangs_ends_them(stub, monkeypatch):
    monkeypatch.setattr(control, "CALL_LIMIT_S", 0.1)
    stub.call()
    assert stub.silent()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_calls_thread_ends_them(stub):
    assert stub.message() is not None
    # A bug in the thread: no peer of ours sends this.
    stub.calls.send_multipart(wire.pack({"neither": "id nor op"}))
    assert stub.silent()


def test_close_ends_both_threads(stub):
    stub.call()
    stub.release.set()
    stub.server.close()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"control", "heartbeat"}


def test_a_reply_that_cannot_be_sent_is_an_error_and_calls_go_on(stub):
    for number in range(2):
        stub.calls.send_multipart(wire.pack({"id": number, "op": "odd", "payload": {}}))
        assert stub.calls.poll(60_000)
        answer = msgspec.msgpack.decode(stub.calls.recv())
        assert answer["id"] == number and answer["error"]["code"] == "internal"
