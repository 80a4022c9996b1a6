"""Parts of the server played by a test over the real data plane: its own BLS side, or its own Code2Wav."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
import zmq
from tritonclient.utils import InferenceServerException

from python_backends.config.errors import OmniError
from python_backends.config.stage import ChunkSchedule
from python_backends.connectors.runtime_dir import opener_key
from python_backends.connectors.zmq_link import ChunkReceiver
from python_backends.orchestrator.orchestrator import Orchestrator
from python_backends.serving.replicas import result_of
from tests.server import Server


def key_of(server: Server) -> str:
    """The secret with which the server's own models open streams: this user may read it."""
    environment = Path(f"/proc/{server.status('thinker')['pid']}/environ").read_text().split("\0")
    (directory,) = [line.partition("=")[2] for line in environment if line.startswith("OMNI_RUNTIME_DIR=")]
    return opener_key(Path(directory))


def open_stage(server: Server):
    """Opens a stream from the test process: it calls the stage's Triton model over gRPC as `qwen3_omni` does."""
    local, key = threading.local(), key_of(server)

    def call(name: str, payload: dict, media: Sequence[triton.InferInput] = ()) -> dict:
        if not hasattr(local, "client"):
            local.client = triton.InferenceServerClient(server.url)
        tensor = triton.InferInput("request", [1], "BYTES")
        body = json.dumps({"op": "open_all", "key": key, "streams": [payload]})
        tensor.set_data_from_numpy(np.array([body.encode()], dtype=np.object_))
        try:
            reply = json.loads(local.client.infer(name, [tensor, *media]).as_numpy("reply")[0])
        except InferenceServerException as error:
            raise OmniError(error.message()) from error
        result = result_of(reply["answers"][0])
        if isinstance(result, OmniError):
            raise result
        return result

    return call


class CollectingResponder:
    """Collects one answer."""

    def __init__(self) -> None:
        self.deltas: list[str] = []
        self.chunks: list[np.ndarray] = []
        self.result: dict | OmniError | None = None
        self._done = threading.Event()

    def send(self, text: str, audio: np.ndarray | None, summary: dict | None = None) -> None:
        if text:
            self.deltas.append(text)
        if audio is not None:
            self.chunks.append(audio.copy())
        if summary is not None:
            self.result = summary
            self._done.set()

    def error(self, error: OmniError) -> None:
        self.result = error
        self._done.set()

    def cancelled(self) -> bool:
        return False

    def wait(self, timeout_s: float = 120) -> dict:
        assert self._done.wait(timeout_s), "the stream did not end"
        if isinstance(self.result, OmniError):
            raise self.result
        return self.result

    @property
    def wave(self) -> np.ndarray:
        return np.concatenate(self.chunks) if self.chunks else np.empty(0, np.float32)


def orchestrator_with(server: Server, directory, schedule: ChunkSchedule) -> Orchestrator:
    """A second orchestrator on the server's engines, with another chunk schedule."""
    call = open_stage(server)

    def open_all(name: str, payloads: list[dict]) -> list[dict | OmniError]:
        return [call(name, payload) for payload in payloads]

    return Orchestrator(f"ipc://{directory}/{uuid.uuid4().hex}", open_all, schedule)


def ids_and_codes(
    server: Server, directory, request, media: Sequence[triton.InferInput] = ()
) -> tuple[list[int], np.ndarray]:
    """Run Thinker and Talker with the test as Code2Wav and as BLS model; `request` is an OmniRequest, `media` raw.

    Returns the text ids that the Talker is sent and the codes [frames, 16] that Code2Wav is sent.
    """
    context = zmq.Context()
    try:
        names = ("reply", "ids", "codes")
        boxes = {name: ChunkReceiver(context, f"ipc://{directory}/{uuid.uuid4().hex}") for name in names}
        call = open_stage(server)
        spoken = _payloads(request, boxes["reply"].address)
        talker = call("talker", spoken["talker"] | {"sink": boxes["codes"].address})
        call("thinker", spoken["thinker"] | {"sink": talker["data"]}, media)
        codes = _collect(boxes["codes"], "codes")
        # A second, silent run with the same prompt shows the ids that crossed to the Talker.
        again = _payloads(request, boxes["reply"].address)
        call("thinker", again["thinker"] | {"sink": boxes["ids"].address}, media)
        ids = _collect(boxes["ids"], "ids")
        _collect_finish(boxes["reply"], {"thinker": 2, "talker": 1})
        return ids.tolist(), codes
    finally:
        context.destroy(linger=0)


def _payloads(request, reply: str) -> dict[str, dict]:
    base = {"stream_id": uuid.uuid4().hex, "reply": reply, "seed": request.seed}
    return {
        "talker": base
        | {
            "speaker": request.speaker,
            "sampling": asdict(request.talker),
            "schedule": asdict(ChunkSchedule(4, 25)),
        },
        "thinker": base | {"messages": request.messages, "sampling": asdict(request.thinker)},
    }


def _collect(receiver: ChunkReceiver, name: str) -> np.ndarray:
    parts = []
    while True:
        chunks = receiver.receive(60_000)
        assert chunks, f"no {name} arrived"
        for chunk in chunks:
            if name in chunk.tensors:
                parts.append(chunk.tensors[name].copy())
            if chunk.finished:
                return np.concatenate(parts)


def _collect_finish(reply: ChunkReceiver, expected: dict[str, int]) -> None:
    left = dict(expected)
    while any(left.values()):
        chunks = reply.receive(10_000)
        assert chunks, f"still waiting for the end of {left}"
        for chunk in chunks:
            assert chunk.error is None, chunk.error
            if chunk.finished:
                left[chunk.source] -= 1
