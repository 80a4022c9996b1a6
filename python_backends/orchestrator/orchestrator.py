"""What the BLS model does: open the stages in reverse, merge their chunks, finish, cancel, fail."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict

import zmq

from python_backends.config.errors import Cancelled, OmniError, ProtocolError, ShuttingDown, StageFailed, TimedOut
from python_backends.config.media_inputs import MediaArrays
from python_backends.config.stage import ChunkSchedule
from python_backends.config.stage_keys import STAGES
from python_backends.connectors.chunk import Chunk, SequenceChecker
from python_backends.connectors.outbox import Outbox
from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender
from python_backends.orchestrator.admission import Admission
from python_backends.orchestrator.limits import Limits, Timeouts
from python_backends.orchestrator.opener import Opener
from python_backends.orchestrator.outlets import Outlets
from python_backends.orchestrator.request import RequestDefaults, asks_for_description, parse_request
from python_backends.orchestrator.stream import OpenStage, Responder, Stream

log = logging.getLogger(__name__)

CANCEL_POLL_S = 0.25  # between two polls of one stream
DUE_POLL_S = 0.05  # between two looks at the time limits
ABORT_S = 120.0  # an engine that hangs takes an abort when it goes on, or is killed long before this
GATHER = 512  # chunks that are merged at most before they are passed on


def _log_unreachable(stream_id: str, error: StageFailed) -> None:
    log.warning("stream %s: cannot be aborted: %s", stream_id, error)


class Orchestrator:
    """Runs client streams within `limits`. `submit` is called by request threads and never blocks.

    Its threads: one for each set of stages opens streams, one receives chunks, a few answer clients, one for each
    engine carries aborts to it.

    `open_stage(name, payloads)` opens streams on a stage; several threads may call it at once. It returns for each its
    reply, with at least `data` (where its chunks go) and `instance` (which process serves it), or the OmniError that it
    was refused with; it raises OmniError when the stage cannot be asked. `give_up(stage)`: a part of the server died
    that nothing brings back. `refusal()`: why the server can take no new request now, if so.
    """

    def __init__(
        self,
        address: str,
        open_stage: Callable[[str, list[dict]], list[dict | OmniError]],
        schedule: ChunkSchedule,
        adaptive_first_chunk: bool = False,
        defaults: RequestDefaults | None = None,
        limits: Limits | None = None,
        give_up: Callable[[str], None] = lambda stage: None,
        refusal: Callable[[], OmniError | None] = lambda: None,
    ) -> None:
        self._open_stage = open_stage
        self._give_up = give_up
        self._refusal = refusal
        self._schedule = schedule
        self._adaptive = adaptive_first_chunk
        self._defaults = defaults
        self.description: dict = {}
        self._limits = limits or Limits()
        self._context = zmq.Context()
        self._receiver = ChunkReceiver(self._context, address)
        self._sender = ChunkSender(self._context, timeout_s=ABORT_S)
        self._aborts = Outbox(self._sender, _log_unreachable)
        self._checker = SequenceChecker()
        self._streams: dict[str, Stream] = {}
        self._data_of: dict[str, str] = {}  # addresses of engines that streams were opened on, by instance
        self._dead_instances: set[str] = set()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._next_due_poll = 0.0
        self._outlets = Outlets(self._answer, lambda: len(self._streams) / self._limits.text_responses_per_s)
        self._opener = Opener(self._open)
        self._admission = Admission(self._limits, self._opener.put)
        self._thread = threading.Thread(target=self._run, name="orchestrator", daemon=True)
        self._thread.start()

    # ---- requests ---------------------------------------------------------------------------------------------------
    def submit(
        self,
        raw: bytes | str,
        responder: Responder,
        media: MediaArrays | None = None,
        unhurried: bool = False,
        request_id: str = "",
        total_s: float | None = None,
    ) -> None:
        """Start one request. Never raises: what is wrong with it goes to `responder.error`.

        `media`: its raw media, see `split_media`. `unhurried`: no time limits. `request_id`: the client's name for a
        request that brings none in its JSON. `total_s`: a time limit beside those in it.
        """
        if (refused := self._refusal()) is not None:
            responder.error(refused)
            return
        try:
            if asks_for_description(raw):
                responder.send("", None, self.description)
                return
            request = parse_request(raw, self._defaults, media or {}, request_id)
        except OmniError as error:
            responder.error(error)
            return
        timeouts = (
            Timeouts()
            if unhurried
            else request.timeouts.within(self._limits.timeouts).within(Timeouts(total_s=total_s))
        )
        stream = Stream(uuid.uuid4().hex, request, responder, timeouts, media=media or {})
        stream.next_cancel_poll = stream.started + CANCEL_POLL_S
        with self._lock:
            self._streams[stream.stream_id] = stream
        try:
            self._admission.offer(stream)
        except OmniError as error:
            self._end(stream.stream_id, error)

    def _open(self, streams: list[Stream]) -> None:
        """Open the sink first, then its producer, so that nobody sends to a stage that does not know the stream."""
        for stream in streams:
            stream.mark("admitted")
        for name in reversed(STAGES):
            asked = [s for s in streams if name in s.expected and s.stream_id in self._streams]
            if not asked:
                continue
            try:
                replies = self._open_stage(name, [self._payload(name, stream) for stream in asked])
            except OmniError as error:
                replies = [error.detached()] * len(asked)
            except Exception as error:
                log.exception("opening %d streams on %s failed", len(asked), name)
                replies = [OmniError(f"{type(error).__name__}: {error}")] * len(asked)
            for stream, reply in zip(asked, replies, strict=True):
                if isinstance(reply, OmniError):
                    self._end(stream.stream_id, reply)
                else:
                    self._opened(stream, OpenStage(name, reply))
        for stream in streams:
            stream.media = {}  # an answer may take minutes
            stream.mark("opened")

    def _payload(self, name: str, stream: Stream) -> dict:
        request = stream.request
        payload = {"stream_id": stream.stream_id, "reply": self._receiver.address}
        if name == "code2wav":
            return payload | {"sample_format": request.audio_format}
        payload |= {"sink": stream.stages[-1].data if stream.stages else None, "seed": request.seed}
        if name == "talker":
            schedule = asdict(self._schedule_for(stream.stages[-1].reply))
            return payload | {"speaker": request.speaker, "sampling": asdict(request.talker), "schedule": schedule}
        hold = self._schedule.steady == 0
        payload |= {"messages": request.messages, "sampling": asdict(request.thinker), "hold_ids": hold}
        payload |= {"template": request.chat_template_kwargs}
        # Opened before the Thinker, the Talker has said how much it can hear.
        payload |= {"speech_rows": stream.stages[-1].reply.get("rows")} if stream.stages else {}
        return payload | {"media": stream.media} if stream.media else payload

    def _schedule_for(self, decoder_reply: dict) -> ChunkSchedule:
        if not self._adaptive or self._schedule.steady == 0:
            return self._schedule
        return ChunkSchedule(steady=self._schedule.steady, doubling=True, **decoder_reply["first_chunk"])

    def _opened(self, stream: Stream, opened: OpenStage) -> None:
        with self._lock:
            died = opened.instance in self._dead_instances
            if not died:
                self._data_of[opened.instance] = opened.data
            if stream.stream_id in self._streams:
                stream.stages.append(opened)
                if died:
                    self._end(stream.stream_id, StageFailed(f"the {opened.name} engine died; try again"))
                return
            # The stream ended while this stage was being opened.
            self._abort(stream.stream_id, opened)

    # ---- chunks -----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._stop.is_set():
            for chunk in self._gather(50):
                self._take(chunk)
            if time.monotonic() >= self._next_due_poll:
                self._next_due_poll = time.monotonic() + DUE_POLL_S
                self._poll_due()

    def _gather(self, timeout_ms: int) -> list[Chunk]:
        """Everything that has arrived: what arrived for one client can leave as one response."""
        chunks: list[Chunk] = []
        while not chunks or (len(chunks) < GATHER and self._receiver.waiting()):
            try:
                more = self._receiver.receive(timeout_ms)
            except ProtocolError as error:
                log.error("dropped a message: %s", error)
                continue
            if not more:
                break
            chunks += more
        return chunks

    def _take(self, chunk: Chunk) -> None:
        if "instance" in chunk.meta:
            self._instance_died(chunk.source, chunk.meta["instance"])
            if "stub_gone" in chunk.meta and not self._stop.is_set():
                self._give_up(chunk.source)
            return
        if "stopping" in chunk.meta:
            self._drain()
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
            except Exception as error:
                log.exception("stream %s: chunk from %s", chunk.stream_id, chunk.source)
                self._end(chunk.stream_id, OmniError(f"{type(error).__name__}: {error}"))
            else:
                if chunk.finished:
                    self._admission.leave_stage(stream, chunk.source)
                if stream.complete:
                    self._forget(stream.stream_id)
                self._outlets.put(stream)

    def _answer(self, stream: Stream) -> None:
        """Send what a stream has for its client; ask whether the client is still there when that is due."""
        with self._lock:
            answer = stream.answer()
            poll, stream.poll = stream.poll, False
        if answer is None:
            return
        try:
            answer.send(stream.responder)
            if poll and not answer.is_last and stream.responder.cancelled():
                self._end(stream.stream_id, Cancelled("the client cancelled the request"))
        except Exception as error:
            log.exception("stream %s: answering the client", stream.stream_id)
            self._end(stream.stream_id, OmniError(f"{type(error).__name__}: {error}"))

    def _poll_due(self) -> None:
        """End what has run out of time, and at shutdown what still runs; have clients asked for now and then."""
        now = time.monotonic()
        with self._lock:
            streams = list(self._streams.values())
            for stream in streams:
                if stream.next_cancel_poll <= now:
                    stream.next_cancel_poll, stream.poll, stream.urgent = now + CANCEL_POLL_S, True, True
                    self._outlets.put(stream)
        for stream in streams:
            if (reason := stream.overdue()) is not None:
                self._end(stream.stream_id, TimedOut(reason))
            elif stream.ends_at is not None and now > stream.ends_at:
                self._end(stream.stream_id, ShuttingDown("the server is shutting down"))

    def _drain(self) -> None:
        """The server stops: what waits is refused, what runs has a little time left."""
        with self._lock:
            streams = list(self._streams.values())
        ends_at = time.monotonic() + self._limits.drain_s
        for stream in streams:
            if "admitted" not in stream.timings:
                self._end(stream.stream_id, ShuttingDown("the server is shutting down"))
            elif stream.ends_at is None:
                stream.ends_at = ends_at

    def _instance_died(self, stage: str, instance: str) -> None:
        with self._lock:
            self._dead_instances.add(instance)
            if (address := self._data_of.pop(instance, None)) is not None:
                self._aborts.abandon(address)
            hit = [
                s.stream_id
                for s in self._streams.values()
                if stage not in s.finished and any(o.instance == instance for o in s.stages)
            ]
        for stream_id in hit:
            self._end(stream_id, StageFailed(f"the {stage} engine died; try again"))

    # ---- the end ----------------------------------------------------------------------------------------------------
    def _forget(self, stream_id: str) -> Stream | None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._checker.forget(stream_id, STAGES)
            self._admission.leave(stream)
        return stream

    def _end(self, stream_id: str, error: OmniError) -> None:
        """End a stream with an error, once, and free it on every stage that has not finished it."""
        error = error.detached()
        with self._lock:
            stream = self._forget(stream_id)
            if stream is None:
                return
            open_stages = [o for o in stream.stages if o.name not in stream.finished]
            stream.error, stream.urgent = error, True
            self._outlets.put(stream)
            for opened in open_stages:
                self._abort(stream_id, opened)
        log.info("stream %s (request %s): %s: %s", stream_id, stream.request.request_id or "-", error.code, error)

    def _abort(self, stream_id: str, opened: OpenStage) -> None:
        """Have an engine free a stream; one that takes nothing holds up no other. To be called under the lock."""
        if opened.instance not in self._dead_instances:
            self._aborts.put(opened.data, Chunk(stream_id, "orchestrator", 0, "abort", True))

    def __len__(self) -> int:
        return len(self._streams)

    def close(self) -> None:
        """End all streams with an error and stop."""
        for stream_id in list(self._streams):
            self._end(stream_id, ShuttingDown("the server is shutting down"))
        self._stop.set()
        self._opener.close()
        self._thread.join(2)
        self._outlets.close()
        self._aborts.close()
        self._receiver.close()
        self._sender.close()
        self._context.destroy(linger=200)
