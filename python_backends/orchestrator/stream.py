"""One client stream: merges what the stages send, knows when it is complete."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from python_backends.config.errors import OmniError, ProtocolError
from python_backends.config.media_inputs import MediaArrays
from python_backends.connectors.chunk import Chunk
from python_backends.orchestrator.limits import Timeouts
from python_backends.orchestrator.request import OmniRequest


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
    """A stage that holds resources for a stream, and its reply to the call that opened it."""

    name: str
    reply: dict

    @property
    def data(self) -> str:
        """Address of its chunks and aborts."""
        return self.reply["data"]

    @property
    def instance(self) -> str:
        """Which process serves the stream."""
        return self.reply["instance"]


@dataclass(frozen=True)
class Answer:
    """What one response carries. With a summary or an error it is the last."""

    text: str = ""
    audio: tuple[np.ndarray, ...] = ()
    summary: dict | None = None
    error: OmniError | None = None
    logprobs: tuple[dict, ...] = ()

    @property
    def is_last(self) -> bool:
        return self.summary is not None or self.error is not None

    def send(self, responder: Responder) -> None:
        if self.error is not None:
            responder.error(self.error)
        elif self.text or self.audio or self.logprobs or self.summary is not None:
            joined = np.concatenate(self.audio) if len(self.audio) > 1 else next(iter(self.audio), None)
            more = {"logprobs": list(self.logprobs)} if self.logprobs else {}
            responder.send(self.text, joined, self.summary, **more)


@dataclass(eq=False)
class Stream:
    """State of one request between its arrival and its last response. Used under the orchestrator's lock.

    `media`: raw media on their way to the Thinker; empty once it has them. `queued`: it waits for its outlet; `urgent`:
    it should not wait there for others' sake, `hurried`: its outlet was told so. `answered_at`: when the outlet last
    served it. `answered`: its last response is made. `poll`: its client is to be asked for.
    """

    stream_id: str
    request: OmniRequest
    responder: Responder
    timeouts: Timeouts = Timeouts()
    started: float = field(default_factory=time.monotonic)
    stages: list[OpenStage] = field(default_factory=list)
    finished: dict[str, dict] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    media: MediaArrays = field(default_factory=dict)
    next_cancel_poll: float = 0.0
    ends_at: float | None = None
    queued: bool = False
    urgent: bool = False
    hurried: bool = False
    answered_at: float = 0.0
    answered: bool = False
    poll: bool = False
    error: OmniError | None = None
    _text: list[str] = field(default_factory=list)
    _audio: list[np.ndarray] = field(default_factory=list)
    _logprobs: list[dict] = field(default_factory=list)
    _all_logprobs: list[dict] = field(default_factory=list)

    @property
    def expected(self) -> tuple[str, ...]:
        return ("thinker", "talker", "code2wav") if self.request.wants_audio else ("thinker",)

    @property
    def complete(self) -> bool:
        return len(self.finished) == len(self.expected)

    def mark(self, name: str) -> bool:
        """Record, once, the milliseconds from the request's arrival to an event. False when it is there already."""
        if name in self.timings:
            return False
        self.timings[name] = round((time.monotonic() - self.started) * 1000, 3)
        return True

    def overdue(self) -> str | None:
        """Which time limit has run out, in words."""
        elapsed, limits = time.monotonic() - self.started, self.timeouts
        if limits.queue_s is not None and "admitted" not in self.timings and elapsed > limits.queue_s:
            return f"queue_s: not started within {limits.queue_s:g} s"
        waits_for_audio = self.request.wants_audio and "first_audio" not in self.timings
        if limits.first_audio_s is not None and waits_for_audio and elapsed > limits.first_audio_s:
            return f"first_audio_s: no audio within {limits.first_audio_s:g} s"
        if limits.total_s is not None and elapsed > limits.total_s:
            return f"total_s: not complete within {limits.total_s:g} s"
        return None

    def take(self, chunk: Chunk) -> None:
        """Note what a chunk brings; `answer` passes it on. Raises ProtocolError for a kind that no stage sends here."""
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
                self.mark("first_audio")
                self.urgent = True
                self._audio.append(chunk.tensors["audio"])
        elif chunk.kind != "progress":
            raise ProtocolError(f"{chunk.source} sent a chunk of kind {chunk.kind}")
        if chunk.finished:
            self.mark(f"{chunk.source}_done")
            self.finished[chunk.source] = {"finish_reason": chunk.meta["reason"], "usage": chunk.meta["usage"]}
            self.urgent |= self.complete

    def answer(self) -> Answer | None:
        """What was taken since the last call, as one response; None once the last one is made."""
        self.queued = self.urgent = self.hurried = False
        if self.answered:
            return None
        if self.error is not None:
            self.answered = True
            return Answer(error=self.error)
        self.answered = self.complete
        summary = self.summary() if self.complete else None
        answer = Answer("".join(self._text), tuple(self._audio), summary, logprobs=tuple(self._logprobs))
        self._text, self._audio, self._logprobs = [], [], []
        return answer

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
