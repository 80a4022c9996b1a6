"""A client that costs little: one gRPC stream a request, responses kept as bytes with their time of arrival."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from tests.played_engines import SAMPLES_A_FRAME, STAMP

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass
class Load:
    """What one run saw. Times in seconds; `delays` from a piece's emission to its arrival, by kind."""

    requests: int = 0
    failures: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    responses: int = 0
    pieces: dict[str, int] = field(default_factory=lambda: {"text": 0, "audio": 0})
    delays: dict[str, list[float]] = field(default_factory=lambda: {"text": [], "audio": []})
    open_s: list[float] = field(default_factory=list)

    def read(self, arrivals: list[tuple[int, bytes]], frames_a_chunk: int) -> None:
        """Take the responses of one request."""
        self.responses += len(arrivals)
        for arrived, raw in arrivals:
            message = service_pb2.ModelStreamInferResponse.FromString(raw)
            if message.error_message:
                self.failures.append(message.error_message)
                return
            reply = message.infer_response
            for output, content in zip(reply.outputs, reply.raw_output_contents, strict=True):
                for kind, stamp in _stamps(output.name, content, frames_a_chunk):
                    self.pieces[kind] += 1
                    self.delays[kind].append((arrived - stamp) / 1e9)


def _is_last(raw: bytes) -> bool:
    """An error (the message's first field) or the response with the summary, whose outputs' names come first."""
    return raw[:1] == b"\n" or b"summary" in raw[:300]


def _stamps(name: str, content: bytes, frames_a_chunk: int):
    if name == "text":
        for at in range(4, len(content), STAMP):
            yield "text", int(content[at : at + STAMP])
    elif name in ("audio", "audio_int16"):
        width = 4 if name == "audio" else 2
        for at in range(0, len(content), frames_a_chunk * SAMPLES_A_FRAME * width):
            yield "audio", int(np.frombuffer(content, np.int64, 1, at)[0])


def request_message(text_tokens: int, frames: int, audio_format: str = "float32") -> service_pb2.ModelInferRequest:
    """A request for `text_tokens` deltas and `frames` frames of audio."""
    body = {
        "messages": [{"role": "user", "content": "hello " * 100}],
        "audio_format": audio_format,
        "sampling": {"thinker": {"max_tokens": text_tokens}, "talker": {"max_tokens": frames}},
    }
    raw = json.dumps(body).encode()
    message = service_pb2.ModelInferRequest(model_name="qwen3_omni")
    message.inputs.add(name="request", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(raw).to_bytes(4, "little") + raw)
    return message


async def _run(url: str, message, concurrency: int, requests: int, frames_a_chunk: int, spread_s: float) -> Load:
    load, left = Load(requests=requests), iter(range(requests))
    everything: list[list[tuple[int, bytes]]] = []
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(url, options=options) as channel:
        call = channel.stream_stream(
            METHOD,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=lambda raw: (time.monotonic_ns(), raw),
        )

        async def worker(number: int) -> None:
            await asyncio.sleep(spread_s * number / concurrency)
            for _ in left:
                stream, arrivals = call(), []
                started = time.monotonic_ns()
                await stream.write(message)
                while True:
                    arrived, raw = await stream.read()
                    if not arrivals:
                        load.open_s.append((arrived - started) / 1e9)
                    arrivals.append((arrived, raw))
                    if _is_last(raw):
                        break
                await stream.done_writing()
                # A Triton whose client leaves in the milliseconds of an answer may not unload the model when it stops.
                while await stream.read() is not grpc.aio.EOF:
                    pass
                everything.append(arrivals)

        started = time.monotonic()
        await asyncio.gather(*(worker(number) for number in range(concurrency)))
        load.wall_s = time.monotonic() - started
    for arrivals in everything:
        load.read(arrivals, frames_a_chunk)
    return load


def run_load(url: str, message, concurrency: int, requests: int, frames_a_chunk: int, spread_s: float = 0.0) -> Load:
    """Send `requests` copies of `message`, `concurrency` at a time, whose first ones start over `spread_s` seconds."""
    return asyncio.run(_run(url, message, concurrency, requests, frames_a_chunk, spread_s))
