"""One client stream: merges what the stages send, knows when it is complete."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from python_backends.config.errors import OmniError, ProtocolError
from python_backends.connectors.chunk import Chunk
from python_backends.orchestrator.request import OmniRequest


class Responder(Protocol):
    """The way back to one client. `finish` or `error` is called once, last."""

    def text(self, delta: str) -> None: ...

    def audio(self, samples: np.ndarray) -> None:
        """`samples` is 1-D float32 or int16 at 24 kHz."""

    def finish(self, summary: dict) -> None: ...

    def error(self, error: OmniError) -> None: ...

    def cancelled(self) -> bool:
        """Whether the client cancelled or went away."""


@dataclass(frozen=True)
class OpenStage:
    """A stage that holds resources for a stream: where to send its abort, and which process it is."""

    name: str
    data: str
    instance: str


@dataclass
class Stream:
    """State of one request between its arrival and its last response. Used under the orchestrator's lock."""

    stream_id: str
    request: OmniRequest
    responder: Responder
    started: float = field(default_factory=time.monotonic)
    stages: list[OpenStage] = field(default_factory=list)
    finished: dict[str, dict] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    audio_samples: int = 0

    @property
    def expected(self) -> tuple[str, ...]:
        return ("thinker", "talker", "code2wav") if self.request.wants_audio else ("thinker",)

    @property
    def complete(self) -> bool:
        return all(name in self.finished for name in self.expected)

    def mark(self, name: str) -> None:
        """Record, once, the milliseconds from the request's arrival to an event."""
        self.timings.setdefault(name, round((time.monotonic() - self.started) * 1000, 3))

    def take(self, chunk: Chunk) -> None:
        """Pass a chunk on to the client. Raises ProtocolError for a kind that no stage sends here."""
        if chunk.kind == "text":
            if chunk.meta["text"]:
                self.mark("first_text")
                if self.request.wants_text:
                    self.responder.text(chunk.meta["text"])
        elif chunk.kind == "audio":
            samples = chunk.tensors["audio"]
            if samples.size:
                self.mark("first_audio")
                self.audio_samples += samples.size
                self.responder.audio(samples)
        elif chunk.kind != "progress":
            raise ProtocolError(f"{chunk.source} sent a chunk of kind {chunk.kind}")
        if chunk.finished:
            self.mark(f"{chunk.source}_done")
            self.finished[chunk.source] = {"finish_reason": chunk.meta["reason"], "usage": chunk.meta["usage"]}

    def summary(self) -> dict:
        """The JSON object of the last response. Times are milliseconds from the request's arrival."""
        self.mark("total")
        return {
            "id": self.stream_id,
            "finish_reason": self.finished["thinker"]["finish_reason"],
            "seed": self.request.seed,
            "stages": self.finished,
            "timings_ms": self.timings,
        }
