"""Calls to the engine processes of one stage: which of them a new stream is given to."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import zmq

from python_backends.config.errors import InvalidRequest, OmniError, Overloaded, StageFailed
from python_backends.connectors import wire

OPEN_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 1.0
CONNECT_TIMEOUT_S = 5.0
_GLANCE_MS = 50
_SOCKETS = "{}-*.calls"  # an engine makes its own when it has loaded; its supervisor takes it away


def result_of(answer: dict) -> dict | OmniError:
    """What `{"ok": ...}` or `{"error": {"code", "message"}}` holds."""
    return answer["ok"] if "ok" in answer else OmniError(answer["error"]["message"], answer["error"]["code"])


def answer_of(result: dict | OmniError) -> dict:
    """Undo `result_of`."""
    if isinstance(result, OmniError):
        return {"error": {"code": result.code, "message": str(result)}}
    return {"ok": result}


def every_stage_runs(runtime_dir: Path, stages: Iterable[str]) -> bool:
    """Whether each of `stages` has a replica that has loaded and has not died since."""
    return all(any(runtime_dir.glob(_SOCKETS.format(stage))) for stage in stages)


class Replicas:
    """The running engine processes of `stage`, found by their sockets in the server's runtime directory. Thread-safe.

    Triton picks an idle stub for a call, blind to load, and a BLS call cannot name a stub; so whichever stub gets the
    call gives the stream to the least loaded engine of the stage, its own or another stub's. A process that has died
    has no socket there and is passed over.
    """

    def __init__(self, runtime_dir: Path, stage: str) -> None:
        self._runtime_dir = runtime_dir
        self._stage = stage
        self._context: zmq.Context = zmq.Context.instance()
        self._sockets: dict[Path, zmq.Socket] = {}
        self._call_ids = itertools.count()
        self._lock = threading.Lock()

    def open(self, payloads: list[dict]) -> list[dict | OmniError]:
        """Open streams, each on the replica that has the fewest. Returns for each its reply or why it was refused.

        A stream that a replica has no room for, or that died with it, is offered to the next.
        """
        with self._lock:
            results: list[dict | OmniError] = [StageFailed(f"{self._stage} is not running; it is being restarted")]
            results *= len(payloads)
            left, loads = list(range(len(payloads))), self._loads(self._running())
            while left and loads:
                given: dict[Path, list[int]] = {}
                for at in left:
                    path = min(loads, key=loads.__getitem__)
                    loads[path] += 1
                    given.setdefault(path, []).append(at)
                left = []
                for path, streams in given.items():
                    for at, result in zip(streams, self._open_on(path, [payloads[at] for at in streams]), strict=True):
                        results[at] = result
                        if isinstance(result, OmniError) and result.code in (StageFailed.code, Overloaded.code):
                            left.append(at)
                            loads.pop(path, None)
            return results

    def status(self) -> list[dict]:
        """Counts of each replica that answers."""
        with self._lock:
            return list(self._ask_all(self._running(), "status", OPEN_TIMEOUT_S).values())

    def describe(self) -> dict:
        """What the stage can do and hold; all its replicas are alike."""
        with self._lock:
            return next(iter(self._ask_all(self._running(), "describe", OPEN_TIMEOUT_S).values()), {})

    def count(self) -> int:
        """How many replicas can serve."""
        with self._lock:
            return len(self._ask_all(self._running(), "load", LOAD_TIMEOUT_S))

    def open_streams(self) -> int:
        """Streams open on the stage."""
        with self._lock:
            return sum(answer["open"] for answer in self._ask_all(self._running(), "load", LOAD_TIMEOUT_S).values())

    def _running(self) -> list[Path]:
        found = sorted(self._runtime_dir.glob(_SOCKETS.format(self._stage)))
        for path in set(self._sockets) - set(found):
            self._sockets.pop(path).close()
        return found

    def _loads(self, replicas: list[Path]) -> dict[Path, int]:
        """Open streams of each replica; of a lone one nobody needs to ask."""
        answers = self._ask_all(replicas, "load", LOAD_TIMEOUT_S) if len(replicas) > 1 else {}
        return {path: answer["open"] for path, answer in answers.items()} or dict.fromkeys(replicas, 0)

    def _ask_all(self, replicas: list[Path], op: str, timeout_s: float) -> dict[Path, dict]:
        """Answers of those that give one in time, asked at once."""
        deadline = time.monotonic() + timeout_s
        asked = {path: call for path in replicas if (call := self._send(path, op, {})) is not None}
        answers = {path: self._await(path, call, deadline) for path, call in asked.items()}
        return {path: answer["ok"] for path, answer in answers.items() if answer is not None and "ok" in answer}

    def _open_on(self, path: Path, payloads: list[dict]) -> list[dict | OmniError]:
        try:
            call = self._send(path, "open_all", {"streams": payloads})
        except (TypeError, ValueError, OverflowError) as error:
            # One payload that cannot be packed must not take the others of its call along.
            if len(payloads) > 1:
                return [self._open_on(path, [payload])[0] for payload in payloads]
            return [InvalidRequest("request", f"cannot be sent to {self._stage}: {error}")]
        answer = None if call is None else self._await(path, call, time.monotonic() + OPEN_TIMEOUT_S)
        if answer is None or "ok" not in answer:
            for payload in payloads:  # if it opens them after all, nobody knows of them
                self._send(path, "abort", {"stream_id": payload.get("stream_id")})
            return [StageFailed(f"{self._stage} died or did not answer within {OPEN_TIMEOUT_S:.0f} s")] * len(payloads)
        return [result_of(one) for one in answer["ok"]["answers"]]

    def _send(self, path: Path, op: str, payload: dict) -> int | None:
        """Send a call; None when nobody listens there."""
        if path not in self._sockets:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            # Without a live connection a call must fail here, where another replica can be tried.
            socket.setsockopt(zmq.IMMEDIATE, 1)
            socket.connect(f"ipc://{path}")
            self._sockets[path] = socket
        socket, deadline = self._sockets[path], time.monotonic() + CONNECT_TIMEOUT_S
        while not socket.poll(_GLANCE_MS, zmq.POLLOUT):
            if time.monotonic() > deadline or not path.exists():
                return None
        call_id = next(self._call_ids)
        try:
            frames = wire.pack({"id": call_id, "op": op, "payload": payload})
            socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:  # it died since the poll
            return None
        return call_id

    def _await(self, path: Path, call_id: int, deadline: float) -> dict | None:
        socket = self._sockets[path]
        while (left := deadline - time.monotonic()) > 0 and path.exists():
            if socket.poll(int(min(_GLANCE_MS, 1000 * left))):
                answer = msgspec.msgpack.decode(socket.recv())
                if answer["id"] == call_id:  # a call that timed out may still be answered
                    return answer
        return None

    def close(self) -> None:
        with self._lock:
            for socket in self._sockets.values():
                socket.close()
            self._sockets.clear()
