"""One client stream: waits for what happens to it, merges what the stages send, knows when it is complete."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from python_backends.config.errors import Cancelled, OmniError, ProtocolError, ShuttingDown, StageFailed, TimedOut
from python_backends.config.media_inputs import MediaArrays
from python_backends.connectors.chunk import Chunk, SequenceChecker
from python_backends.orchestrator.limits import Timeouts
from python_backends.orchestrator.request import OmniRequest
from python_backends.orchestrator.tasks import Task, Wait

POLL_S = 0.25  # between two looks at whether the client is still there


class Responder(Protocol):
    """The way back to one client. A `send` with a summary, or `error`, is called once, last."""

    def send(
        self, text: str, audio: np.ndarray | None, summary: dict | None = None, logprobs: list[dict] | None = None
    ) -> None:
        """Send what is new as one response. `text` may be empty; `audio` is 1-D float32 or int16 at 24 kHz; `logprobs`
        of the ids that came with the text, where the request wants them."""

    def error(self, error: OmniError) -> None: ...

    def cancelled(self) -> bool:
        """Whether the client cancelled or went away."""


@dataclass(frozen=True)
class OpenStage:
    """A stage that holds resources for a stream; `data` takes its chunks and aborts, `instance` names the process."""

    name: str
    data: str
    instance: str


@dataclass(frozen=True)
class Admitted:
    """There is room for the stream in every stage that it needs."""


@dataclass(frozen=True)
class EngineDied:
    """An engine process of a stage has ended."""

    stage: str
    instance: str


@dataclass(frozen=True)
class Draining:
    """The server stops: what waits is refused, what runs may do so until `ends_at` (of the monotonic clock)."""

    ends_at: float


# What can happen to a stream; an OmniError ends it.
Event = Chunk | Admitted | OpenStage | EngineDied | Draining | OmniError


@dataclass(eq=False)
class Stream:
    """State of one request between its arrival and its last response.

    Everything but `task` belongs to the task that serves the request. `media`: raw media on their way to the
    Thinker; empty once it has them. `finished`: by stage, how it ended and what it counted. `urgent`: what was taken
    should leave at once.
    """

    stream_id: str
    request: OmniRequest
    responder: Responder
    task: Task
    timeouts: Timeouts = Timeouts()
    media: MediaArrays = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    stages: list[OpenStage] = field(default_factory=list)
    finished: dict[str, dict] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    urgent: bool = False
    _checker: SequenceChecker = field(default_factory=SequenceChecker)
    _drained_at: float | None = None
    _ends_at: float = math.inf
    _next_poll: float = 0.0
    _text: list[str] = field(default_factory=list)
    _audio: list[np.ndarray] = field(default_factory=list)
    _logprobs: list[dict] = field(default_factory=list)
    _all_logprobs: list[dict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next_poll = self.started + POLL_S
        self._limit()

    @property
    def expected(self) -> tuple[str, ...]:
        return ("thinker", "talker", "code2wav") if self.request.wants_audio else ("thinker",)

    @property
    def complete(self) -> bool:
        return len(self.finished) == len(self.expected)

    def tell(self, event: Event) -> None:
        """Called by any thread: something happened to the stream."""
        self.task.tell([event])

    def tell_chunks(self, chunks: list[Chunk]) -> None:
        """Called by any thread: chunks came, which leave together."""
        gathers = all(chunk.kind == "text" and not chunk.finished and chunk.error is None for chunk in chunks)
        self.task.tell(chunks, may_gather=gathers)

    def advance(self, gather_until: float | None = None) -> Generator[Wait, None, None]:
        """Wait for what happens next and note it. Until `gather_until`, of the monotonic clock, text alone gathers.

        Raises the OmniError that ends the stream: a stage's, a time limit, the client's leaving, a shutdown.
        """
        if gather_until is not None or not self.task.was_told:
            until = min(self._next_poll, self._ends_at, gather_until or math.inf)
            yield Wait(until, gathers=gather_until is not None)
        while (event := self.task.take()) is not None:
            self._note(event)
        now = time.monotonic()
        if self.complete:
            return
        if now >= self._ends_at:
            raise self._end_reason()
        if now >= self._next_poll:
            self._next_poll = now + POLL_S
            if self.responder.cancelled():
                raise Cancelled("the client cancelled the request")

    def _limit(self) -> None:
        """Find out until when the stream may run, after something that a time limit ends with."""
        self._ends_at = min((end for end, _ in self._limits()), default=math.inf)

    def _limits(self) -> Iterator[tuple[float, OmniError]]:
        """Until when the stream may run, by each limit that still counts, and the error that ends it then."""
        limits = self.timeouts
        if limits.queue_s is not None and "admitted" not in self.timings:
            yield self.started + limits.queue_s, TimedOut(f"queue_s: not started within {limits.queue_s:g} s")
        if limits.first_audio_s is not None and self.request.wants_audio and "first_audio" not in self.timings:
            yield (
                self.started + limits.first_audio_s,
                TimedOut(f"first_audio_s: no audio within {limits.first_audio_s:g} s"),
            )
        if limits.total_s is not None:
            yield self.started + limits.total_s, TimedOut(f"total_s: not complete within {limits.total_s:g} s")
        if self._drained_at is not None:
            yield self._drained_at, ShuttingDown("the server is shutting down")

    def _end_reason(self) -> OmniError:
        return min(self._limits(), key=lambda limit: limit[0])[1]

    def _note(self, event: Event) -> None:
        if isinstance(event, Chunk):
            self._take(event)
        elif isinstance(event, Admitted):
            self.mark("admitted")
            self._limit()
        elif isinstance(event, OpenStage):
            self.stages.append(event)
        elif isinstance(event, EngineDied):
            if event.stage not in self.finished and any(opened.instance == event.instance for opened in self.stages):
                raise StageFailed(f"the {event.stage} engine died; try again")
        elif isinstance(event, Draining):
            if "admitted" not in self.timings:
                raise ShuttingDown("the server is shutting down")
            self._drained_at = self._drained_at or event.ends_at
            self._limit()
        else:
            raise event

    def _take(self, chunk: Chunk) -> None:
        self._checker.check(chunk)
        if chunk.error is not None:
            raise OmniError(chunk.error[1], chunk.error[0])
        if chunk.kind == "text":
            if chunk.meta["text"]:
                self.urgent |= self.mark("first_text")
                if self.request.wants_text:
                    self._text.append(chunk.meta["text"])
            if logprobs := chunk.meta.get("logprobs"):
                self._all_logprobs += logprobs
                if self.request.wants_text:
                    self._logprobs += logprobs
        elif chunk.kind == "audio":
            if chunk.tensors["audio"].size:
                if self.mark("first_audio"):
                    self._limit()
                self.urgent = True
                self._audio.append(chunk.tensors["audio"])
        elif chunk.kind != "progress":
            raise ProtocolError(f"{chunk.source} sent a chunk of kind {chunk.kind}")
        if chunk.finished:
            self.mark(f"{chunk.source}_done")
            self.finished[chunk.source] = {"finish_reason": chunk.meta["reason"], "usage": chunk.meta["usage"]}
            if "notes" in chunk.meta:
                self.finished[chunk.source]["notes"] = chunk.meta["notes"]

    def mark(self, name: str) -> bool:
        """Record, once, the milliseconds from the request's arrival to an event. False when it is there already."""
        if name in self.timings:
            return False
        self.timings[name] = round((time.monotonic() - self.started) * 1000, 3)
        return True

    @property
    def has_output(self) -> bool:
        return bool(self._text or self._audio or self._logprobs)

    def send_output(self, summary: dict | None = None) -> None:
        """Send what was taken since the last call as one response."""
        text, audio = "".join(self._text), self._audio
        more = {"logprobs": self._logprobs} if self._logprobs else {}
        self._text, self._audio, self._logprobs, self.urgent = [], [], [], False
        joined = np.concatenate(audio) if len(audio) > 1 else next(iter(audio), None)
        self.responder.send(text, joined, summary, **more)

    def summary(self) -> dict:
        """The JSON object of the last response. Times are milliseconds from the request's arrival.

        `finish_reason` is "length" when a limit cut any stage short: text that is whole may be spoken in part.
        """
        self.mark("total")
        reasons = [stage["finish_reason"] for stage in self.finished.values()]
        summary = {
            "id": self.stream_id,
            "request_id": self.request.request_id,
            "finish_reason": "length" if "length" in reasons else self.finished["thinker"]["finish_reason"],
            "seed": self.request.seed,
            "stages": self.finished,
            "timings_ms": self.timings,
        }
        return summary | {"logprobs": self._all_logprobs} if self.request.thinker.logprobs else summary
