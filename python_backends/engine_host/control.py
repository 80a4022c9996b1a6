"""Control channel of an engine process: answers its stub's calls and sends heartbeats."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgpack
import zmq

from python_backends.config.errors import OmniError, ProtocolError
from python_backends.connectors import call_wire

log = logging.getLogger(__name__)
HEARTBEAT_S = 0.5


def answer(handler: Callable[[dict], dict], payload: dict) -> dict:
    """`{"ok": result}`, or `{"error": {"code", "message"}}` for what `handler` raised."""
    try:
        return {"ok": handler(payload)}
    except OmniError as error:
        return {"error": {"code": error.code, "message": str(error)}}
    except Exception as error:
        log.exception("a control call failed")
        return {"error": {"code": "internal", "message": f"{type(error).__name__}: {error}"}}


def report_failure(context: zmq.Context, stub_address: str, reason: str) -> None:
    """Tell the stub why the engine cannot serve."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.connect(stub_address)
    socket.send(msgpack.packb({"failure": reason}))
    socket.close()


def _unknown_op(payload: dict) -> dict:
    raise OmniError("unknown operation")


class ControlServer:
    """Answers calls on a ROUTER that it binds, and pushes hello and heartbeats to the stub. One thread.

    A call is `{"id", "op", "payload"}`, with raw media as arrays in it; the answer `{"id", "ok"}` or
    `{"id", "error": {"code", "message"}}`. Between calls it pushes `{"heartbeat": stats}` twice a second.
    """

    def __init__(
        self,
        context: zmq.Context,
        stub_address: str,
        calls_address: str,
        handlers: dict[str, Callable[[dict], dict]],
        stats: Callable[[], dict],
    ) -> None:
        self._calls = context.socket(zmq.ROUTER)
        self._calls.setsockopt(zmq.LINGER, 200)
        self._calls.bind(calls_address)
        self._stub = context.socket(zmq.PUSH)
        self._stub.setsockopt(zmq.LINGER, 0)
        self._stub.connect(stub_address)
        self._handlers = handlers
        self._stats = stats
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def hello(self, facts: dict) -> None:
        """Tell the stub that the engine can serve, and start to answer its calls."""
        facts |= {"calls": self._calls.getsockopt_string(zmq.LAST_ENDPOINT)}
        self._stub.send(msgpack.packb({"hello": facts}))
        self._thread.start()

    def _serve(self) -> None:
        next_beat = 0.0
        while not self._stop.is_set():
            if time.monotonic() >= next_beat:
                self._stub.send(msgpack.packb({"heartbeat": self._stats()}))
                next_beat = time.monotonic() + HEARTBEAT_S
            if self._calls.poll(100):
                peer, *frames = self._calls.recv_multipart(copy=False)
                try:
                    call = call_wire.unpack([frame.buffer for frame in frames])
                except ProtocolError as error:
                    log.error("dropped a call: %s", error)
                    continue
                handler = self._handlers.get(call["op"], _unknown_op)
                reply = {"id": call["id"]} | answer(handler, call["payload"])
                self._calls.send_multipart([peer.bytes, msgpack.packb(reply)])

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)
        self._calls.close()
        self._stub.close()
