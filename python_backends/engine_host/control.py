"""Control channel of an engine process: answers its stub's calls and sends heartbeats."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from python_backends.config.errors import OmniError, ProtocolError
from python_backends.connectors import wire

log = logging.getLogger(__name__)
HEARTBEAT_S = 0.5
# A call may be slow, but one that takes this long hangs: the engine then looks dead, as it cannot be asked anything.
CALL_LIMIT_S = 120.0


def answer(handler: Callable[[dict], dict], payload: dict) -> dict:
    """`{"ok": result}`, or `{"error": {"code", "message"}}` for what `handler` raised."""
    try:
        return {"ok": handler(payload)}
    except OmniError as error:
        return {"error": {"code": error.code, "message": str(error)}}
    except Exception as error:
        log.exception("a control call failed")
        return {"error": {"code": "internal", "message": f"{type(error).__name__}: {error}"}}


def report(context: zmq.Context, stub_address: str, news: dict) -> None:
    """Tell the stub, before there is a ControlServer, `{"failure": why}` or `{"waiting": True}` for a device."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.connect(stub_address)
    socket.send(msgspec.msgpack.encode(news))
    socket.close()


def _packed(call_id: int, reply: dict) -> bytes:
    try:
        return msgspec.msgpack.encode({"id": call_id} | reply)
    except (TypeError, ValueError, OverflowError) as error:  # a handler's fault, which must not end all calls
        log.error("a reply cannot be sent: %s", error)
        return msgspec.msgpack.encode({"id": call_id, "error": {"code": "internal", "message": "an unreadable reply"}})


def _unknown_op(payload: dict) -> dict:
    raise OmniError("unknown operation")


class ControlServer:
    """Answers calls on a ROUTER that it binds, and pushes hello and heartbeats to the stub.

    Calls and heartbeats have a thread each, so that a slow call does not look like a dead engine. A heartbeat still
    means that the process answers: none is sent once the calls' thread has ended or a call hangs.

    A call is `{"id", "op", "payload"}`, with raw media as arrays in it; the answer `{"id", "ok"}` or
    `{"id", "error": {"code", "message"}}`. Twice a second `{"heartbeat": stats}` is pushed.
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
        self._call_since: float | None = None
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        # From its start on the only one that uses the socket to the stub: sockets may not be shared.
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def hello(self, facts: dict) -> None:
        """Tell the stub that the engine can serve, and start to answer its calls."""
        facts |= {"calls": self._calls.getsockopt_string(zmq.LAST_ENDPOINT)}
        self._stub.send(msgspec.msgpack.encode({"hello": facts}))
        self._thread.start()
        self._beats.start()

    def _beat(self) -> None:
        while self._answers():
            self._stub.send(msgspec.msgpack.encode({"heartbeat": self._stats()}))
            if self._stop.wait(HEARTBEAT_S):
                return
        if not self._stop.is_set():
            log.error("the engine no longer answers calls: no more heartbeats")

    def _answers(self) -> bool:
        since = self._call_since
        return self._thread.is_alive() and (since is None or time.monotonic() - since < CALL_LIMIT_S)

    def _serve(self) -> None:
        while not self._stop.is_set():
            if self._calls.poll(100):
                peer, *frames = self._calls.recv_multipart(copy=False)
                try:
                    call: dict[str, Any] = wire.unpack([frame.buffer for frame in frames])
                except ProtocolError as error:
                    log.error("dropped a call: %s", error)
                    continue
                handler = self._handlers.get(call["op"], _unknown_op)
                self._call_since = time.monotonic()
                reply = _packed(call["id"], answer(handler, call["payload"]))
                self._call_since = None
                self._calls.send_multipart([peer.bytes, reply])

    def close(self) -> None:
        self._stop.set()
        for thread in (self._thread, self._beats):
            if thread.is_alive():
                thread.join(2)
        self._calls.close()
        self._stub.close()
