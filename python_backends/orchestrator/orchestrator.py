"""What the BLS model does with a request: admit it, open its stages, pass on what they send, end it."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import Any

import zmq

from python_backends.config.errors import OmniError, ProtocolError, ShuttingDown, StageFailed
from python_backends.config.media_inputs import MediaArrays
from python_backends.config.stage import ChunkSchedule
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.outbox import Outbox
from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender
from python_backends.orchestrator.admission import Admission
from python_backends.orchestrator.limits import Limits, Timeouts
from python_backends.orchestrator.opener import Opener
from python_backends.orchestrator.request import RequestDefaults, asks_for_description, parse_request
from python_backends.orchestrator.stream import Admitted, Draining, EngineDied, OpenStage, Responder, Stream
from python_backends.orchestrator.tasks import CLOSE_S, Tasks, Wait

log = logging.getLogger(__name__)

ALL_STREAMS = "*"  # the stream id of what a stage's model tells of all streams
GATHER = 512  # chunks that are merged at most before they are passed on
ABORT_S = 120.0  # an engine that hangs takes an abort when it goes on, or is killed long before this


def _log_unreachable(stream_id: str, error: StageFailed) -> None:
    log.warning("stream %s: cannot be aborted: %s", stream_id, error)


class Orchestrator:
    """Runs client streams within `limits`. `submit` is called by request threads and never blocks.

    Each request is a task, which serves it from its arrival to its last response and waits for one thing: to be told
    what happens to its stream. Tasks run on a few threads. Beside them one thread receives chunks, one for each set of
    stages opens streams, and one for each engine carries aborts to it.

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
        defaults: RequestDefaults | None = None,
        limits: Limits | None = None,
        give_up: Callable[[str], None] = lambda stage: None,
        refusal: Callable[[], OmniError | None] = lambda: None,
    ) -> None:
        self._open_stage = open_stage
        self._give_up = give_up
        self._refusal = refusal
        self._schedule = schedule
        self._defaults = defaults
        self.description: dict = {}
        self._limits = limits or Limits()
        self._context = zmq.Context()
        self._receiver = ChunkReceiver(self._context, address)
        self._sender = ChunkSender(self._context, timeout_s=ABORT_S)
        self._aborts = Outbox(self._sender, _log_unreachable)
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}
        self._data_of: dict[str, str] = {}  # addresses of engines that streams were opened on, by instance
        self._dead_instances: set[str] = set()
        self._stop = threading.Event()
        self._drains = False
        self._tasks = Tasks()
        self._opener = Opener(self._open)
        self._admission = Admission(self._limits, self._admitted)
        self._thread = threading.Thread(target=self._receive, name="receiver", daemon=True)
        self._thread.start()

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
        try:
            if (refused := self._refusal()) is not None:
                raise refused
            if asks_for_description(raw):
                responder.send("", None, self.description)
                return
            request = parse_request(raw, self._defaults, media or {}, request_id)
            bounds = self._limits.timeouts.within(Timeouts(total_s=total_s))
            timeouts = Timeouts() if unhurried else request.timeouts.within(bounds)
            stream = Stream(uuid.uuid4().hex, request, responder, self._tasks.new(), timeouts, media or {})
            self._start(stream)
        except OmniError as error:
            responder.error(error.detached())
        except Exception as error:  # whoever calls has other requests to start
            log.exception("a request could not be started")
            responder.error(OmniError(f"{type(error).__name__}: {error}").detached())

    def _start(self, stream: Stream) -> None:
        # Under the lock to its end: what `close` finds here runs, and is told.
        with self._lock:
            if self._drains:
                raise ShuttingDown("the server is shutting down")
            self._streams[stream.stream_id] = stream  # before it is admitted: a notice to all must reach it
            try:
                self._admission.offer(stream)
            except OmniError:
                del self._streams[stream.stream_id]
                raise
            self._tasks.start(stream.task, self._serve(stream))

    # ---- one request, as a task -------------------------------------------------------------------------------------
    def _serve(self, stream: Stream) -> Generator[Wait, None, None]:
        """A request from its admission to its last response."""
        error: OmniError | None = None
        try:
            while len(stream.stages) < len(stream.expected):
                yield from stream.advance()
            stream.mark("opened")
            yield from self._relay(stream)
        except OmniError as reason:
            error = reason.detached()
        except Exception as reason:
            log.exception("stream %s", stream.stream_id)
            error = OmniError(f"{type(reason).__name__}: {reason}").detached()
        self._leave(stream)  # before the last response, after which the client may ask again
        try:
            if error is None:
                stream.send_output(stream.summary())
            else:
                name = stream.request.request_id or "-"
                log.info("stream %s (request %s): %s: %s", stream.stream_id, name, error.code, error)
                stream.responder.error(error)
        except Exception:
            log.exception("stream %s: answering the client", stream.stream_id)

    def _relay(self, stream: Stream) -> Generator[Wait, None, None]:
        """Pass on what the stages send until all have finished; the rest goes with the summary.

        A response costs the host much the same whatever it carries. So the more streams are open, the longer text
        gathers; what is urgent leaves at once.
        """
        done: set[str] = set()
        due = 0.0
        while not stream.complete:
            yield from stream.advance(gather_until=due if time.monotonic() < due else None)
            for name in stream.finished.keys() - done:
                done.add(name)
                self._admission.leave_stage(stream, name)
            now = time.monotonic()
            if not stream.complete and (stream.urgent or (stream.has_output and now >= due)):
                due = now + len(self._streams) / self._limits.text_responses_per_s
                stream.send_output()

    def _leave(self, stream: Stream) -> None:
        """Forget a stream, and free it on every stage that has not finished it."""
        with self._lock:
            del self._streams[stream.stream_id]
        self._admission.leave(stream)
        # A stage may have opened the stream after the thread looked last; from now on `_opened` sees to that.
        while (event := stream.task.take()) is not None:
            if isinstance(event, OpenStage):
                stream.stages.append(event)
        for opened in stream.stages:
            if opened.name not in stream.finished:
                self._abort(stream.stream_id, opened)

    # ---- opening, on the threads of `Opener` ------------------------------------------------------------------------
    def _admitted(self, stream: Stream) -> None:
        stream.tell(Admitted())
        self._opener.put(stream)

    def _open(self, streams: list[Stream]) -> None:
        """Open the sink first, then its producer, so that nobody sends to a stage that does not know the stream."""
        sinks: dict[str, dict] = {}
        for name in reversed(streams[0].expected):
            streams = [stream for stream in streams if stream.stream_id in self._streams]
            if not streams:
                return
            try:
                payloads = [self._payload(name, stream, sinks.get(stream.stream_id)) for stream in streams]
                replies = self._open_stage(name, payloads)
                if len(replies) != len(streams):
                    raise StageFailed(f"the {name} stage answered {len(replies)} of {len(streams)} streams")
            except OmniError as error:
                replies = [error.detached()] * len(streams)
            except Exception as error:
                log.exception("opening %d streams on %s failed", len(streams), name)
                replies = [OmniError(f"{type(error).__name__}: {error}").detached()] * len(streams)
            asked, streams = streams, []
            for stream, reply in zip(asked, replies, strict=True):
                if isinstance(reply, OmniError):
                    stream.tell(reply)
                elif not isinstance(reply, dict) or not {"data", "instance"} <= reply.keys():
                    stream.tell(StageFailed(f"the {name} stage did not say where its stream is"))
                elif self._opened(stream, OpenStage(name, reply["data"], reply["instance"])):
                    sinks[stream.stream_id] = reply
                    streams.append(stream)
        for stream in streams:
            stream.media = {}  # an answer may take minutes

    def _payload(self, name: str, stream: Stream, sink: dict | None) -> dict:
        """`sink`: what the stage behind `name` answered when it was opened."""
        request = stream.request
        payload: dict[str, Any] = {"stream_id": stream.stream_id, "reply": self._receiver.address}
        if name == "code2wav":
            return payload | {"sample_format": request.audio_format}
        payload |= {"sink": sink and sink["data"], "seed": request.seed}
        if name == "talker":
            schedule = asdict(self._schedule)
            return payload | {"speaker": request.speaker, "sampling": asdict(request.talker), "schedule": schedule}
        hold = self._schedule.steady == 0
        payload |= {"messages": request.messages, "sampling": asdict(request.thinker), "hold_ids": hold}
        # The Talker has said how much it can hear.
        payload |= {"template": request.chat_template_kwargs, "speech_rows": sink and sink.get("rows")}
        return payload | {"media": stream.media} if stream.media else payload

    def _opened(self, stream: Stream, opened: OpenStage) -> bool:
        """Tell the stream; False when it has ended, or ends as the engine has."""
        with self._lock:
            if not (died := opened.instance in self._dead_instances):
                self._data_of[opened.instance] = opened.data
            if waits := stream.stream_id in self._streams:
                stream.tell(StageFailed(f"the {opened.name} engine died; try again") if died else opened)
        if not waits:
            self._abort(stream.stream_id, opened)
        return waits and not died

    def _abort(self, stream_id: str, opened: OpenStage) -> None:
        """Have an engine free a stream; one that takes nothing holds up no other."""
        with self._lock:
            died = opened.instance in self._dead_instances
        if not died:
            self._aborts.put(opened.data, Chunk(stream_id, "orchestrator", 0, "abort", True))

    # ---- what the stages send ---------------------------------------------------------------------------------------
    def _receive(self) -> None:
        while not self._stop.is_set():
            by_stream: dict[str, list[Chunk]] = {}
            for chunk in self._gather():
                by_stream.setdefault(chunk.stream_id, []).append(chunk)
            for notice in by_stream.pop(ALL_STREAMS, []):
                try:
                    self._take_notice(notice)
                except Exception:  # every stream depends on this thread
                    log.exception("a notice of %s was dropped", notice.source)
            for stream_id, chunks in by_stream.items():
                if (stream := self._streams.get(stream_id)) is not None:
                    stream.tell_chunks(chunks)  # otherwise it ended; what was under way may still arrive

    def _gather(self) -> list[Chunk]:
        """Everything that has arrived: what arrived for one client can leave as one response."""
        chunks: list[Chunk] = []
        while not chunks or (len(chunks) < GATHER and self._receiver.waiting()):
            try:
                more = self._receiver.receive(50)
            except ProtocolError as error:
                log.error("dropped a message: %s", error)
                continue
            if not more:
                break
            chunks += more
        return chunks

    def drain(self) -> None:
        """For a server that ends: what runs has a little time left, and from now on new requests are refused."""
        with self._lock:
            self._drains = True
        self._drain()

    def _drain(self) -> None:
        self._tell_all(Draining(time.monotonic() + self._limits.drain_s))

    def _take_notice(self, chunk: Chunk) -> None:
        """What a stage's model tells of all streams: an engine died, or the server stops."""
        if "stopping" in chunk.meta:
            self._drain()
            return
        instance = chunk.meta["instance"]
        with self._lock:
            self._dead_instances.add(instance)
            address = self._data_of.pop(instance, None)
        if address is not None:
            self._aborts.abandon(address)
        self._tell_all(EngineDied(chunk.source, instance))
        if "stub_gone" in chunk.meta and not self._stop.is_set():
            self._give_up(chunk.source)

    def _tell_all(self, event: EngineDied | Draining | ShuttingDown) -> None:
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.tell(event)

    def __len__(self) -> int:
        return len(self._streams)

    def close(self) -> None:
        """End all streams with an error and stop. A request that comes now or later is refused."""
        with self._lock:
            self._drains = True
        self._tell_all(ShuttingDown("the server is shutting down"))
        self._tasks.close()
        self._stop.set()
        self._opener.close()
        self._thread.join(CLOSE_S)
        self._aborts.close()
        self._receiver.close()
        self._sender.close()
        self._context.destroy(linger=200)
