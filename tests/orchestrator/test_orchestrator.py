"""The orchestrator against stages played by the test over real ZeroMQ."""

import json
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
import zmq

from python_backends.config.errors import InvalidRequest, OmniError
from python_backends.config.stage import ChunkSchedule
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender
from python_backends.orchestrator.orchestrator import Orchestrator


@dataclass
class RecordingResponder:
    deltas: list = field(default_factory=list)
    chunks: list = field(default_factory=list)
    result: dict | OmniError | None = None
    gone: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    ends: int = 0

    def text(self, delta):
        self.deltas.append(delta)

    def audio(self, samples):
        self.chunks.append(samples.copy())

    def finish(self, summary):
        self.result, self.ends = summary, self.ends + 1
        self.done.set()

    def error(self, error):
        self.result, self.ends = error, self.ends + 1
        self.done.set()

    def cancelled(self):
        return self.gone

    def wait(self):
        assert self.done.wait(5), "the stream did not end"
        return self.result


class PlayedStages:
    """Three stages that open what they are asked, note it, and send what the test says."""

    def __init__(self, directory):
        self.context = zmq.Context()
        self.inboxes = {
            name: ChunkReceiver(self.context, f"ipc://{directory}/{name}") for name in ("thinker", "talker", "code2wav")
        }
        self.sender = ChunkSender(self.context)
        self.opened, self.refuse = [], {}

    def open(self, name, payload):
        self.opened.append((name, payload))
        if name in self.refuse:
            raise self.refuse[name]
        return {"data": self.inboxes[name].address, "instance": f"{name}@1", "initial_frames": 1}

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


@pytest.fixture
def stages(tmp_path):
    stages = PlayedStages(tmp_path)
    yield stages
    stages.close()


@pytest.fixture
def orchestrator(stages, tmp_path):
    orchestrator = Orchestrator(f"ipc://{tmp_path}/bls", stages.open, ChunkSchedule(4, 25))
    yield orchestrator
    orchestrator.close()
    assert len(orchestrator) == 0


def ask(orchestrator, **fields):
    responder = RecordingResponder()
    orchestrator.submit(json.dumps({"messages": [{"role": "user", "content": "Hi"}]} | fields), responder)
    return responder


def test_text_and_audio_are_merged_and_summed_up(orchestrator, stages):
    responder = ask(orchestrator, seed=5)
    assert [name for name, _ in stages.opened] == ["code2wav", "talker", "thinker"]
    assert stages.payload("talker")["sink"] == stages.inboxes["code2wav"].address
    assert stages.payload("thinker")["sink"] == stages.inboxes["talker"].address
    assert stages.payload("talker")["schedule"] == {"initial": 4, "steady": 25, "doubling": False}
    stages.send("thinker", 0, "text", meta={"text": "Hel"})
    stages.send("code2wav", 0, "audio", tensors={"audio": np.ones(8, np.float32)})
    stages.finish("thinker", 1, "text", text="lo")
    stages.finish("talker", 0, "progress")
    stages.finish("code2wav", 1, "audio")
    summary = responder.wait()
    assert responder.deltas == ["Hel", "lo"]
    assert np.concatenate(responder.chunks).tolist() == [1.0] * 8
    assert set(summary["stages"]) == {"thinker", "talker", "code2wav"} and summary["seed"] == 5
    assert {"opened", "first_text", "first_audio", "thinker_done", "code2wav_done", "total"} <= set(
        summary["timings_ms"]
    )
    assert all(stages.quiet(name) for name in stages.inboxes), "a finished stage needs no abort"


def test_a_text_only_request_touches_no_other_stage(orchestrator, stages):
    responder = ask(orchestrator, modalities=["text"])
    assert [name for name, _ in stages.opened] == ["thinker"]
    assert stages.payload("thinker")["sink"] is None
    stages.finish("thinker", 0, "text", text="Yes")
    assert responder.wait()["finish_reason"] == "stop" and responder.deltas == ["Yes"]


def test_an_audio_only_request_gets_no_text(orchestrator, stages):
    responder = ask(orchestrator, modalities=["audio"])
    stages.finish("thinker", 0, "text", text="Yes")
    stages.finish("talker", 0, "progress")
    stages.finish("code2wav", 0, "audio")
    assert "stages" in responder.wait() and responder.deltas == []


def test_a_bad_request_opens_nothing(orchestrator, stages):
    responder = ask(orchestrator, colour=1)
    assert isinstance(responder.wait(), InvalidRequest) and not stages.opened


def test_a_refusal_frees_the_stages_opened_before(orchestrator, stages):
    stages.refuse["talker"] = InvalidRequest("speaker", "unknown")
    responder = ask(orchestrator)
    assert "speaker" in str(responder.wait())
    assert stages.aborted("code2wav") and stages.quiet("talker") and stages.quiet("thinker")


@pytest.mark.parametrize("seq", [0, 2])
def test_a_gap_or_repeat_ends_that_stream_alone(orchestrator, stages, seq):
    responder = ask(orchestrator)
    stages.send("thinker", 0, "text", meta={"text": "a"})
    stages.send("thinker", seq, "text", meta={"text": "b"})
    assert responder.wait().code == "protocol"
    assert all(stages.aborted(name) for name in stages.inboxes)


def test_an_error_of_a_stage_reaches_the_client_and_frees_the_others(orchestrator, stages):
    responder = ask(orchestrator)
    stages.send("talker", 0, "abort", finished=True, error=("invalid_request", "no such row"))
    error = responder.wait()
    assert (error.code, str(error)) == ("invalid_request", "no such row")
    assert stages.aborted("thinker") and stages.aborted("code2wav")


def test_a_cancelled_request_is_freed_everywhere(orchestrator, stages):
    responder = ask(orchestrator)
    responder.gone = True
    assert responder.wait().code == "cancelled"
    assert all(stages.aborted(name) for name in stages.inboxes)


def test_the_death_of_an_engine_ends_its_streams_and_no_others(orchestrator, stages):
    spoken = ask(orchestrator)
    silent = ask(orchestrator, modalities=["text"])
    reply = stages.payload("talker")["reply"]
    stages.sender.send(reply, [Chunk("*", "talker", 0, "abort", True, meta={"instance": "talker@1"})])
    assert spoken.wait().code == "stage_failed" and "talker" in str(spoken.result)
    assert stages.aborted("thinker") and stages.aborted("code2wav") and stages.quiet("talker")
    assert silent.result is None
    thinker = [payload for name, payload in stages.opened if name == "thinker"][1]
    meta = {"text": "ok", "reason": "stop", "usage": {}}
    stages.sender.send(reply, [Chunk(thinker["stream_id"], "thinker", 0, "text", True, meta=meta)])
    assert silent.wait()["finish_reason"] == "stop"


def test_a_stream_opened_on_a_process_that_just_died_fails_at_once(orchestrator, stages):
    first = ask(orchestrator)
    reply = stages.payload("talker")["reply"]
    stages.sender.send(reply, [Chunk("*", "talker", 0, "abort", True, meta={"instance": "talker@1"})])
    first.wait()
    assert ask(orchestrator).wait().code == "stage_failed"


def test_a_late_chunk_of_an_ended_stream_is_ignored(orchestrator, stages):
    responder = ask(orchestrator, modalities=["text"])
    stages.finish("thinker", 0, "text", text="Yes")
    responder.wait()
    stages.send("thinker", 1, "text", meta={"text": "more"})
    other = ask(orchestrator, modalities=["text"])
    payload = stages.opened[-1][1]
    meta = {"text": "", "reason": "stop", "usage": {}}
    stages.sender.send(payload["reply"], [Chunk(payload["stream_id"], "thinker", 0, "text", True, meta=meta)])
    other.wait()
    assert responder.ends == 1 and responder.deltas == ["Yes"]


def test_close_ends_every_stream_with_an_error(stages, tmp_path):
    orchestrator = Orchestrator(f"ipc://{tmp_path}/bls2", stages.open, ChunkSchedule(1, 25), True)
    responder = ask(orchestrator)
    assert stages.payload("talker")["schedule"] == {"initial": 1, "steady": 25, "doubling": True}
    orchestrator.close()
    assert responder.wait().code == "stage_failed"
