"""Stages and clients that the tests of the orchestrator play, over real ZeroMQ."""

import json
import threading
from dataclasses import dataclass, field

import numpy as np
import zmq

from python_backends.config.errors import OmniError
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender
from tests.server import PATIENT_S, wait_until


@dataclass
class RecordingResponder:
    deltas: list = field(default_factory=list)
    chunks: list = field(default_factory=list)
    result: dict | OmniError | None = None
    gone: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    ends: int = 0
    responses: int = 0

    def send(self, text, audio, summary=None):
        self.responses += 1
        if text:
            self.deltas.append(text)
        if audio is not None:
            self.chunks.append(audio.copy())
        if summary is not None:
            self.result, self.ends = summary, self.ends + 1
            self.done.set()

    def error(self, error):
        self.result, self.ends = error, self.ends + 1
        self.done.set()

    def cancelled(self):
        return self.gone

    def wait(self):
        assert self.done.wait(PATIENT_S), "the stream did not end"
        return self.result


class PlayedStages:
    """Three stages that open what they are asked, note it, and send what the test says."""

    def __init__(self, directory):
        self.context = zmq.Context()
        self.inboxes = {
            name: ChunkReceiver(self.context, f"ipc://{directory}/{name}") for name in ("thinker", "talker", "code2wav")
        }
        self.sender = ChunkSender(self.context)
        self.opened, self.calls, self.refuse = [], [], {}
        self.may_open, self.broken = threading.Event(), set()
        self.may_open.set()

    def open(self, name, payloads):
        self.may_open.wait(PATIENT_S)
        self.calls.append((name, len(payloads)))
        if name in self.broken:
            raise OmniError("not running", "stage_failed")
        self.opened += [(name, payload) for payload in payloads]
        reply = {"data": self.inboxes[name].address, "instance": f"{name}@1"} | (
            {"rows": 99} if name == "talker" else {}
        )
        return [self.refuse.get(name, reply)] * len(payloads)

    def wait_opened(self, calls):
        wait_until(lambda: len(self.opened) >= calls, 5, f"{calls} streams are opened")

    def payload(self, name):
        return next(payload for opened, payload in self.opened if opened == name)

    def send(self, name, seq, kind, **fields):
        payload = self.payload(name)
        self.sender.send(payload["reply"], [Chunk(payload["stream_id"], name, seq, kind, **fields)])

    def finish(self, name, seq, kind, **meta):
        meta = {"reason": "stop", "usage": {"n": 1}} | meta
        tensors = {"audio": np.empty(0, np.float32)} if kind == "audio" else {}
        self.send(name, seq, kind, finished=True, meta=meta, tensors=tensors)

    def aborted(self, name):
        chunks = self.inboxes[name].receive(2000)
        return [chunk.kind for chunk in chunks] == ["abort"]

    def quiet(self, name):
        return self.inboxes[name].receive(0) == []

    def close(self):
        self.context.destroy(linger=0)


def ask(orchestrator, stages=None, **fields):
    """Submit a request; with `stages`, return once it is open on all it needs."""
    responder = RecordingResponder()
    opened = len(stages.opened) if stages else 0
    orchestrator.submit(json.dumps({"messages": [{"role": "user", "content": "Hi"}]} | fields), responder)
    if stages:
        stages.wait_opened(opened + (1 if fields.get("modalities") == ["text"] else 3))
    return responder
