"""Answers of `POST /v1/chat/completions`: whole, and streamed in OpenAI's shape and in vLLM-Omni's."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from client.audio_formats import CODECS, AudioStream, encoded
from client.openai_errors import from_server
from client.openai_metrics import Metrics
from client.openai_schema import KEPT_S, ChatRequest, Transcripts
from client.streaming import SAMPLE_RATE, AudioChunk, Event, OmniClientError, Summary, TextDelta

CHUNK = "chat.completion.chunk"
T = TypeVar("T")


def usage(summary: dict) -> dict:
    """OpenAI's usage of a request; a frame of 80 ms of speech is one audio token."""
    stages = summary["stages"]
    prompt, text = (stages["thinker"]["usage"][name] for name in ("prompt_tokens", "completion_tokens"))
    frames = stages.get("talker", {}).get("usage", {}).get("frames", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": text + frames,
        "total_tokens": prompt + text + frames,
        "completion_tokens_details": {"text_tokens": text, "audio_tokens": frames},
    }


async def _off_loop(audio_format: str, work: Callable[..., T], *args: object) -> T:
    """Codecs take milliseconds in which the others' audio would wait."""
    return await asyncio.to_thread(work, *args) if audio_format in CODECS else work(*args)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _sse(body: dict) -> str:
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"


@dataclass
class Answer:
    """One answer while it comes. `names`: the client's names of fields that the contract calls otherwise."""

    request: ChatRequest
    id: str
    model: str
    names: Mapping[str, str]
    transcripts: Transcripts
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time.time()))
    text: str = ""
    _started: float = field(default_factory=time.monotonic)
    _heard: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self.speaks, self.writes = "audio" in self.request.wanted, "text" in self.request.wanted
        self.audio_id = self.id.replace("chatcmpl", "audio")
        self.expires_at = self.created + KEPT_S

    def took(self, event: Event) -> None:
        """Keep what the end of the answer needs."""
        if isinstance(event, TextDelta):
            self.text += event.text
        elif isinstance(event, AudioChunk):
            if not self._heard:
                self.metrics.first_audio.observe(time.monotonic() - self._started)
            self._heard = True
            self.metrics.audio.inc(event.samples.size / SAMPLE_RATE)
        elif isinstance(event, Summary):
            self.ended = True
            self.metrics.answers.labels(event.body["finish_reason"]).inc()
            if self.speaks:
                self.transcripts.keep(self.audio_id, self.text, self.expires_at)

    async def whole(self, events: AsyncIterator[Event]) -> dict:
        """The body of an answer that is not streamed. Raises OmniClientError."""
        samples, summary = [np.empty(0, np.int16)], {}
        async for event in events:
            self.took(event)
            if isinstance(event, AudioChunk):
                samples.append(event.samples)
            elif isinstance(event, Summary):
                summary = event.body
        message: dict = {"role": "assistant", "content": self.text if self.writes else None, "refusal": None}
        if self.speaks:
            audio_format = self.request.audio_format
            data = await _off_loop(audio_format, encoded, np.concatenate(samples), audio_format)
            message["audio"] = self.spoken(data=_base64(data), expires_at=self.expires_at, transcript=self.text)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": summary["finish_reason"]}
        return self._head("chat.completion") | {"choices": [choice], "usage": usage(summary)}

    async def lines(self, events: AsyncIterator[Event]) -> AsyncGenerator[str, None]:
        """Server-sent events. An error is the last one, in place of `[DONE]`."""
        shape = _ContentShape(self) if self.request.audio_delta == "content" else _AudioShape(self)
        try:
            yield self.line({"role": "assistant", "content": None if self.speaks and not shape.plain else ""})
            async for event in events:
                self.took(event)
                if isinstance(event, TextDelta):
                    if line := shape.text(event.text):
                        yield line
                elif isinstance(event, AudioChunk):
                    if line := await shape.audio(event.samples):
                        yield line
                elif isinstance(event, Summary):
                    for line in await shape.end():
                        yield line
                    yield self.line({}, finish_reason=event.body["finish_reason"])
                    if self._with_usage:
                        yield _sse(self._head(CHUNK) | {"choices": [], "usage": usage(event.body)})
        except OmniClientError as error:
            self.ended = True
            self.metrics.answers.labels(error.code).inc()
            yield _sse(from_server(error, self.names).body())
            return
        yield "data: [DONE]\n\n"

    @property
    def _with_usage(self) -> bool:
        options = self.request.stream_options
        return options is not None and bool(options.include_usage)

    def _head(self, kind: str) -> dict:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def spoken(self, **given: object) -> dict:
        return {"id": self.audio_id, **given}

    def line(self, delta: dict, finish_reason: str | None = None, **more: object) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _sse(self._head(CHUNK) | {"choices": [choice]} | more | ({"usage": None} if self._with_usage else {}))


class _AudioShape:
    """OpenAI's: speech and its transcript in `delta.audio`, text alone in `delta.content`."""

    plain = False

    def __init__(self, answer: Answer) -> None:
        self._answer, self._format = answer, answer.request.audio_format
        self._stream = AudioStream(self._format)

    def text(self, text: str) -> str | None:
        answer = self._answer
        delta: dict = {"audio": answer.spoken(transcript=text)} if answer.speaks else {"content": text}
        return answer.line(delta)

    async def audio(self, samples: np.ndarray) -> str | None:
        data = await _off_loop(self._format, self._stream.encode, samples)
        return self._answer.line({"audio": self._answer.spoken(data=_base64(data))}) if data else None

    async def end(self) -> list[str]:
        if not self._answer.speaks:
            return []
        lines = []
        if data := await _off_loop(self._format, self._stream.finish):
            lines.append(self._answer.line({"audio": self._answer.spoken(data=_base64(data))}))
        return [*lines, self._answer.line({"audio": self._answer.spoken(expires_at=self._answer.expires_at)})]


class _ContentShape:
    """vLLM-Omni's: text and speech in `delta.content`, told apart by `modality`; each piece of speech a whole file."""

    plain = True

    def __init__(self, answer: Answer) -> None:
        self._answer, self._format = answer, answer.request.audio_format

    def text(self, text: str) -> str | None:
        return self._answer.line({"content": text}, modality="text") if self._answer.writes else None

    async def audio(self, samples: np.ndarray) -> str | None:
        facts = {
            "format": self._format,
            "sample_rate_hz": CODECS[self._format].rate if self._format in CODECS else SAMPLE_RATE,
            "frame_count": samples.size,
            "channels": 1,
        }
        data = await _off_loop(self._format, encoded, samples, self._format)
        return self._answer.line({"content": _base64(data)}, modality="audio", audio_metadata=facts)

    async def end(self) -> list[str]:
        return []
