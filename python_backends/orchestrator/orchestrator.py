"""What the BLS model does: open the stages in reverse, merge their chunks, finish, cancel, fail."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict

import zmq

from python_backends.config.errors import Cancelled, OmniError, ProtocolError, StageFailed
from python_backends.config.stage import ChunkSchedule
from python_backends.connectors.chunk import Chunk, SequenceChecker
from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender
from python_backends.orchestrator.request import parse_request
from python_backends.orchestrator.stream import OpenStage, Responder, Stream

log = logging.getLogger(__name__)
STAGES = ("thinker", "talker", "code2wav")
CANCEL_POLL_S = 0.1


class Orchestrator:
    """Runs any number of client streams. `submit` is called by request threads; one thread receives chunks.

    `open_stage(name, payload)` opens a stream on a stage and returns its reply with at least `data` (where its chunks
    go) and `instance` (which process serves it); it raises OmniError.
    """

    def __init__(
        self,
        address: str,
        open_stage: Callable[[str, dict], dict],
        schedule: ChunkSchedule,
        adaptive_first_chunk: bool = False,
        sampling_defaults: dict[str, dict] | None = None,
    ) -> None:
        self._open_stage = open_stage
        self._schedule = schedule
        self._adaptive = adaptive_first_chunk
        self._defaults = sampling_defaults or {}
        self._context = zmq.Context()
        self._receiver = ChunkReceiver(self._context, address)
        self._sender = ChunkSender(self._context, timeout_s=2.0)
        self._checker = SequenceChecker()
        self._streams: dict[str, Stream] = {}
        self._dead_instances: set[str] = set()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orchestrator", daemon=True)
        self._thread.start()

    # ---- requests ---------------------------------------------------------------------------------------------------
    def submit(self, raw: bytes | str, responder: Responder) -> None:
        """Start one request. Never raises: what is wrong with it goes to `responder.error`."""
        try:
            request = parse_request(raw, self._defaults)
        except OmniError as error:
            responder.error(error)
            return
        stream = Stream(uuid.uuid4().hex, request, responder)
        with self._lock:
            self._streams[stream.stream_id] = stream
        try:
            self._open(stream)
        except OmniError as error:
            self._end(stream.stream_id, error)
        except Exception as error:
            log.exception("stream %s: opening failed", stream.stream_id)
            self._end(stream.stream_id, OmniError(f"{type(error).__name__}: {error}"))

    def _open(self, stream: Stream) -> None:
        """Open the sink first, then its producer, so that nobody sends to a stage that does not know the stream."""
        request, base = stream.request, {"stream_id": stream.stream_id, "reply": self._receiver.address}
        sink = None
        if request.wants_audio:
            decoder = self._open_one(stream, "code2wav", base | {"sample_format": request.audio_format})
            sink = decoder["data"]
            payload = {
                "sink": sink,
                "speaker": request.speaker,
                "sampling": asdict(request.talker),
                "seed": request.seed,
                "schedule": asdict(self._schedule_for(decoder)),
            }
            sink = self._open_one(stream, "talker", base | payload)["data"]
        payload = {
            "sink": sink,
            "messages": request.messages,
            "sampling": asdict(request.thinker),
            "seed": request.seed,
        }
        self._open_one(stream, "thinker", base | payload)
        stream.mark("opened")

    def _schedule_for(self, decoder_reply: dict) -> ChunkSchedule:
        if not self._adaptive or self._schedule.steady == 0:
            return self._schedule
        return ChunkSchedule(decoder_reply["initial_frames"], self._schedule.steady, doubling=True)

    def _open_one(self, stream: Stream, name: str, payload: dict) -> dict:
        reply = self._open_stage(name, payload)
        opened = OpenStage(name, reply["data"], reply["instance"])
        with self._lock:
            if stream.stream_id in self._streams:
                stream.stages.append(opened)
                if opened.instance not in self._dead_instances:
                    return reply
        # The stream ended while this stage was being opened, or the stage's process died right after.
        self._abort_stages(stream.stream_id, [opened])
        raise StageFailed(f"{name} died") if opened.instance in self._dead_instances else Cancelled("cancelled")

    # ---- chunks -----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        next_poll = 0.0
        while not self._stop.is_set():
            try:
                chunks = self._receiver.receive(50)
            except ProtocolError as error:
                log.error("dropped a message: %s", error)
                continue
            for chunk in chunks:
                self._take(chunk)
            if time.monotonic() >= next_poll:
                self._poll_cancelled()
                next_poll = time.monotonic() + CANCEL_POLL_S

    def _take(self, chunk: Chunk) -> None:
        if "instance" in chunk.meta:
            self._instance_died(chunk.source, chunk.meta["instance"])
            return
        with self._lock:
            stream = self._streams.get(chunk.stream_id)
            if stream is None:
                return  # it ended; what was under way may still arrive
            try:
                self._checker.check(chunk)
                if chunk.error is not None:
                    raise OmniError(chunk.error[1], chunk.error[0])
                stream.take(chunk)
            except OmniError as error:
                self._end(chunk.stream_id, error)
                return
            except Exception as error:
                log.exception("stream %s: chunk from %s", chunk.stream_id, chunk.source)
                self._end(chunk.stream_id, OmniError(f"{type(error).__name__}: {error}"))
                return
            if stream.complete:
                self._end(chunk.stream_id, None)

    def _poll_cancelled(self) -> None:
        with self._lock:
            gone = [s.stream_id for s in self._streams.values() if s.responder.cancelled()]
        for stream_id in gone:
            self._end(stream_id, Cancelled("the client cancelled the request"))

    def _instance_died(self, stage: str, instance: str) -> None:
        with self._lock:
            self._dead_instances.add(instance)
            hit = [
                s.stream_id
                for s in self._streams.values()
                if stage not in s.finished and any(o.instance == instance for o in s.stages)
            ]
        for stream_id in hit:
            self._end(stream_id, StageFailed(f"the {stage} engine died; try again"))

    # ---- the end ----------------------------------------------------------------------------------------------------
    def _end(self, stream_id: str, error: OmniError | None) -> None:
        """End a stream exactly once; with an error, free it on every stage that has not finished it."""
        with self._lock:
            stream = self._streams.pop(stream_id, None)
            if stream is None:
                return
            self._checker.forget(stream_id, STAGES)
            open_stages = [o for o in stream.stages if o.name not in stream.finished]
        if error is None:
            stream.responder.finish(stream.summary())
            return
        log.info("stream %s: %s: %s", stream_id, error.code, error)
        self._abort_stages(stream_id, open_stages)
        stream.responder.error(error)

    def _abort_stages(self, stream_id: str, stages: list[OpenStage]) -> None:
        for opened in stages:
            if opened.instance in self._dead_instances:
                self._sender.disconnect(opened.data)
                continue
            try:
                self._sender.send(opened.data, [Chunk(stream_id, "orchestrator", 0, "abort", True)])
            except StageFailed as unreachable:
                log.warning("stream %s: cannot abort it on %s: %s", stream_id, opened.name, unreachable)

    def __len__(self) -> int:
        return len(self._streams)

    def close(self) -> None:
        """End all streams with an error and stop."""
        for stream_id in list(self._streams):
            self._end(stream_id, StageFailed("the server is shutting down"))
        self._stop.set()
        self._thread.join(2)
        self._receiver.close()
        self._sender.close()
        self._context.destroy(linger=200)
