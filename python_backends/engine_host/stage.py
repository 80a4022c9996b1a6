"""What the host asks of a stage, and the loop that runs one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from python_backends.config.errors import OmniError, ProtocolError
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.zmq_link import ChunkReceiver
from python_backends.engine_host.streams import Streams

log = logging.getLogger(__name__)
GONE_S = 1.0  # between two looks for openers and later stages that have ended


class Stage(Protocol):
    """One engine with its adapter to the data plane."""

    def open(self, payload: dict) -> dict:
        """Validate and reserve. Returns what the orchestrator needs to know. Raises OmniError."""

    def receive(self, chunk: Chunk) -> None:
        """Feed a chunk of an open stream. Raises OmniError, which ends that stream."""

    def abort(self, stream_id: str) -> None:
        """Free all that the stream holds. No result follows."""

    def run(self, stop: threading.Event) -> None:
        """The engine's loop, on the thread that touches the device; returns when `stop` is set."""

    def stats(self) -> dict: ...

    def describe(self) -> dict:
        """What clients may know: limits, names, versions."""

    def close(self) -> None: ...


class Inbox:
    """The thread that takes chunks off the data plane and hands them to the stage.

    It also frees what belongs to processes that have ended: nobody else would tell the stage of an opener's death.
    """

    def __init__(self, receiver: ChunkReceiver, streams: Streams, stage: Stage) -> None:
        self._receiver = receiver
        self._streams = streams
        self._stage = stage
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        look_at = time.monotonic() + GONE_S
        while not self._stop.is_set():
            if time.monotonic() > look_at:
                self._leave_the_gone()
                look_at = time.monotonic() + GONE_S
            try:
                chunks = self._receiver.receive(100)
            except ProtocolError as error:
                log.error("dropped a message: %s", error)
                continue
            for chunk in chunks:
                self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        if chunk.kind == "abort":
            if self._streams.drop(chunk.stream_id):
                self._stage.abort(chunk.stream_id)
            return
        try:
            if self._streams.check(chunk):
                self._stage.receive(chunk)
        except OmniError as error:
            self._stage.abort(chunk.stream_id)
            self._streams.fail(chunk.stream_id, error)
        except Exception as error:
            log.exception("stream %s: chunk %s from %s", chunk.stream_id, chunk.kind, chunk.source)
            self._stage.abort(chunk.stream_id)
            self._streams.fail(chunk.stream_id, OmniError(f"{type(error).__name__}: {error}"))

    def _leave_the_gone(self) -> None:
        for stream_id in self._streams.leave_the_gone():
            log.warning("stream %s: who opened it has ended", stream_id)
            self._stage.abort(stream_id)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2)
        self._receiver.close()


def run_stepping_engine(engine: Any, stop: threading.Event, fail_all: Callable[[str], None]) -> None:
    """Step `engine` until `stop`: the only thread that touches its device.

    An exception out of a step leaves the device state unknown: every open stream fails (`fail_all`) and the exception
    leaves the process, so that the supervisor starts a clean one.
    """
    while not stop.is_set():
        try:
            if not engine.step():
                engine.wait_for_work(0.1)
        except Exception as error:
            fail_all(f"{type(error).__name__}: {error}")
            raise
