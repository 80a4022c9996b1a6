"""Streaming client over Triton's gRPC API (tritonclient.grpc.aio)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from client.media import RawMedia

END_OF_STREAM_S = 2.0
# Waits before a connection that broke without a response is tried again; gRPC's own, of seconds, would outlast them.
AGAIN_AFTER_S = (0.2, 1.0)
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
SAMPLE_RATE = 24_000


# How Triton refuses a call on a model that is being unloaded or has been, which at our server means its end.
_STOPPING = ("no available versions", "is not ready", "Server not ready", "stopped accepting new inference requests")


class OmniClientError(RuntimeError):
    """The server refused or ended the request.

    `code` is the contract's error code, such as `invalid_request`; the client's own are `disconnected`, when the
    connection broke, and `server`, for what Triton says itself. `retry_after_s`: after how many seconds a request that
    was refused with `overloaded` may be sent again; None where the server does not say.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        found = re.search(r"; retry_after_s=(\d+)$", message)
        self.retry_after_s = int(found[1]) if found else None


@dataclass(frozen=True)
class TextDelta:
    """Text that follows what came before."""

    text: str


@dataclass(frozen=True)
class AudioChunk:
    """Mono samples at 24 kHz, float32 in [-1, 1] or int16, that follow what came before."""

    samples: np.ndarray


@dataclass(frozen=True)
class Logprobs:
    """Log probabilities of the text's next ids: `token_id`, `token`, `bytes`, `logprob`, `top_logprobs` of each."""

    entries: list[dict]


@dataclass(frozen=True)
class Summary:
    """The server's closing facts: finish reason, seed, usage of each stage, timings."""

    body: dict


@dataclass(frozen=True)
class Failed:
    """The end of a request that gave no summary: `code` and `reason` of its OmniClientError."""

    code: str
    reason: str


Event = TextDelta | AudioChunk | Logprobs | Summary


@dataclass
class Answer:
    """A whole answer, collected."""

    text: str = ""
    audio: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    summary: dict = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


class OmniClient:
    """Speaks to one server. Each request has a gRPC stream of its own, so that it can be cancelled and fail alone.

    Use as an async context manager.
    """

    def __init__(self, url: str = "127.0.0.1:8001", model: str = "qwen3_omni") -> None:
        self._url = url
        self._client = triton.InferenceServerClient(url, channel_args=_CHANNEL)
        self._model = model

    async def __aenter__(self) -> OmniClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when the model can serve. Raises TimeoutError."""
        host, port = self._url.rsplit(":", 1)
        async with asyncio.timeout(timeout_s):
            # gRPC would wait longer and longer between its attempts to connect, in the end two minutes.
            while not await _accepts(host.strip("[]"), int(port)):
                await asyncio.sleep(0.1)
            while True:
                try:
                    if await self._client.is_model_ready(self._model):
                        return
                except InferenceServerException:
                    pass  # it listens, but does not serve yet
                await asyncio.sleep(0.1)

    async def stream(
        self, request: dict | str, media: RawMedia | None = None, deadline_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send one request and yield its events; the last is a Summary.

        `request` is the JSON object of the client contract (or a raw string), see `client.chat`. `media`: raw tensors
        that its messages name by number. `deadline_s`: the request is cancelled, with the code `timeout`, when it takes
        longer. A connection that breaks before the first response is tried again, twice. Closing the generator early
        cancels the request on the server. Raises OmniClientError, and ValueError for an array of another shape or type
        than RawMedia says.
        """
        ends = None if deadline_s is None else time.monotonic() + deadline_s
        for wait_s in (*AGAIN_AFTER_S, None):
            begun = False
            try:
                async with aclosing(self._attempt(request, media, ends)) as events:
                    async for event in events:
                        begun = True
                        yield event
                return
            except OmniClientError as error:
                if begun or wait_s is None or error.code != "disconnected":
                    raise
            await asyncio.sleep(wait_s)

    async def events(
        self, request: dict | str, media: RawMedia | None = None, deadline_s: float | None = None
    ) -> AsyncGenerator[Event | Failed, None]:
        """As `stream`, but an error is not raised: the last event is a Summary or a Failed.

        So may the events of many requests be read side by side.
        """
        try:
            async with aclosing(self.stream(request, media, deadline_s)) as events:
                async for event in events:
                    yield event
        except OmniClientError as error:
            yield Failed(error.code, str(error))

    async def _attempt(
        self, request: dict | str, media: RawMedia | None, ends: float | None
    ) -> AsyncGenerator[Event, None]:
        raw = request if isinstance(request, str) else json.dumps(request)
        tensor = triton.InferInput("request", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([raw.encode()], dtype=np.object_))
        inputs = [tensor, *(media.inputs() if media is not None else ())]

        async def one() -> AsyncIterator[dict]:
            yield {"model_name": self._model, "inputs": inputs}
            # The request side stays open: closing it early would end the stream on some servers.
            await done.wait()

        done = asyncio.Event()
        timeout_s = None if ends is None else max(0.0, ends - time.monotonic())
        responses = self._client.stream_infer(one(), stream_timeout=timeout_s)
        finished = False
        try:
            async for result, error in responses:
                if error is not None:
                    finished = True
                    raise _client_error(error.message())
                for event in _events(result):
                    finished = isinstance(event, Summary)
                    yield event
                if finished:
                    return
            raise OmniClientError("disconnected", "the server closed the stream before the summary")
        except InferenceServerException as error:
            finished = True
            raise _client_error(error.message()) from error
        except grpc.aio.AioRpcError as error:
            finished = True
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise OmniClientError("timeout", "no end within the client's own deadline") from error
            raise OmniClientError("disconnected", f"the connection broke: {error.details()}") from error
        finally:
            done.set()
            if not finished or not await _ended(responses):
                responses.cancel()

    async def describe(self) -> dict:
        """What the server can do: modalities, voices, limits, versions."""
        return (await self.ask({"describe": True})).summary

    async def check_ready(self, timeout_s: float = 5.0) -> None:
        """Return if every stage can serve now. Raises OmniClientError: the model's readiness lags behind a stage's."""
        tensor = triton.InferInput("request", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b'{"op": "status"}'], dtype=np.object_))
        try:
            # Of what is being loaded or unloaded a description would be answered, or waited for, all the same.
            if not await self._client.is_model_ready(self._model, client_timeout=timeout_s):
                raise OmniClientError("shutting_down", "the model is not ready")
            for stage in (await self.ask({"describe": True}, deadline_s=timeout_s)).summary["stages"]:
                await self._client.infer(stage, [tensor], client_timeout=timeout_s)
        except InferenceServerException as error:
            raise _client_error(error.message()) from error

    async def ask(self, request: dict | str, media: RawMedia | None = None, deadline_s: float | None = None) -> Answer:
        """As `stream`, with the whole answer collected."""
        answer, audio = Answer(), []
        async for event in self.stream(request, media, deadline_s):
            answer.events.append(event)
            if isinstance(event, TextDelta):
                answer.text += event.text
            elif isinstance(event, AudioChunk):
                audio.append(event.samples)
            elif isinstance(event, Summary):
                answer.summary = event.body
        if audio:
            answer.audio = np.concatenate(audio)
        return answer


async def _ended(responses: AsyncIterator) -> bool:
    """Wait for the server's end of a stream whose answer is complete.

    A channel that is closed before that cancels the call, and a Triton that is cancelled just as it answers can keep
    hold of the request for good, and with it of the model when it is to stop.
    """
    try:
        async with asyncio.timeout(END_OF_STREAM_S):
            async for _ in responses:
                pass
    except (TimeoutError, InferenceServerException, grpc.aio.AioRpcError):
        return False
    return True


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def _events(result: Any) -> list[Event]:
    events: list[Event] = []
    for output in result.get_response().outputs:
        value = result.as_numpy(output.name)
        if output.name == "text":
            events.append(TextDelta(value[0].decode()))
        elif output.name in ("audio", "audio_int16"):
            events.append(AudioChunk(value))
        elif output.name == "logprobs":
            events.append(Logprobs(json.loads(value[0])))
        elif output.name == "summary":
            events.append(Summary(json.loads(value[0])))
    return events


def _client_error(message: str) -> OmniClientError:
    """The server writes `[code] message`, perhaps behind words of Triton's own; else all words are Triton's."""
    if found := re.search(r"\[([a-z_]+)\] (.*)", message, re.DOTALL):
        return OmniClientError(found[1], found[2])
    if any(words in message for words in _STOPPING):
        return OmniClientError("shutting_down", f"the server takes no new requests (Triton: {message})")
    return OmniClientError("server", message)
