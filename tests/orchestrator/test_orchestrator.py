"""The orchestrator against stages played by the test over real ZeroMQ."""

import gc
import json
import threading
import time
import weakref

import numpy as np
import pytest

from python_backends.config.errors import InvalidRequest, OmniError, Overloaded
from python_backends.config.stage import ChunkSchedule
from python_backends.connectors.chunk import Chunk
from python_backends.orchestrator.limits import Limits
from python_backends.orchestrator.orchestrator import Orchestrator
from tests.orchestrator.stages import RecordingResponder, ask
from tests.server import PATIENT_S, wait_until


def test_text_and_audio_are_merged_and_summed_up(orchestrator, stages):
    responder = ask(orchestrator, stages, seed=5)
    assert [name for name, _ in stages.opened] == ["code2wav", "talker", "thinker"]
    assert stages.payload("talker")["sink"] == stages.inboxes["code2wav"].address
    assert stages.payload("thinker")["sink"] == stages.inboxes["talker"].address
    assert stages.payload("thinker")["speech_rows"] == 99
    assert ChunkSchedule(**stages.payload("talker")["schedule"]) == ChunkSchedule(4, 25)
    stages.send("thinker", 0, "text", meta={"text": "Hel"})
    stages.send("code2wav", 0, "audio", tensors={"audio": np.ones(8, np.float32)})
    stages.finish("thinker", 1, "text", text="lo")
    stages.finish("talker", 0, "progress")
    stages.finish("code2wav", 1, "audio")
    summary = responder.wait()
    assert "".join(responder.deltas) == "Hello"
    assert np.concatenate(responder.chunks).tolist() == [1.0] * 8
    assert set(summary["stages"]) == {"thinker", "talker", "code2wav"} and summary["seed"] == 5
    assert {"opened", "first_text", "first_audio", "thinker_done", "code2wav_done", "total"} <= set(
        summary["timings_ms"]
    )
    assert all(stages.quiet(name) for name in stages.inboxes), "a finished stage needs no abort"


def test_text_gathers_while_the_first_text_audio_and_the_end_leave_at_once(stages, tmp_path):
    limits = Limits(text_responses_per_s=1 / 30)
    orchestrator = Orchestrator(f"ipc://{tmp_path}/bls", stages.open, ChunkSchedule(4, 25), limits=limits)
    responder = ask(orchestrator, stages)
    stages.send("thinker", 0, "text", meta={"text": "a"})
    wait_until(lambda: responder.deltas == ["a"], 5, "the first text")
    stages.send("thinker", 1, "text", meta={"text": "b"})
    stages.send("thinker", 2, "text", meta={"text": "c"})
    time.sleep(0.1)
    assert responder.deltas == ["a"]
    stages.send("code2wav", 0, "audio", tensors={"audio": np.ones(8, np.float32)})
    wait_until(lambda: responder.deltas == ["a", "bc"] and len(responder.chunks) == 1, 5, "audio with the text before")
    stages.send("code2wav", 1, "audio", tensors={"audio": np.ones(8, np.float32)})
    wait_until(lambda: len(responder.chunks) == 2, 5, "more audio")
    stages.finish("thinker", 3, "text", text="d")
    stages.finish("talker", 0, "progress")
    stages.finish("code2wav", 2, "audio")
    assert "stages" in responder.wait() and responder.deltas == ["a", "bc", "d"] and responder.responses == 4
    orchestrator.close()


def test_a_cancel_is_seen_though_text_is_put_off(stages, tmp_path):
    orchestrator = Orchestrator(
        f"ipc://{tmp_path}/bls", stages.open, ChunkSchedule(4, 25), limits=Limits(text_responses_per_s=1 / 30)
    )
    responder = ask(orchestrator, stages)
    for seq in range(3):
        stages.send("thinker", seq, "text", meta={"text": "a"})
    responder.gone = True
    assert responder.wait().code == "cancelled"
    orchestrator.close()


def test_a_text_only_request_touches_no_other_stage(orchestrator, stages):
    responder = ask(orchestrator, stages, modalities=["text"])
    assert [name for name, _ in stages.opened] == ["thinker"]
    assert stages.payload("thinker")["sink"] is None
    stages.finish("thinker", 0, "text", text="Yes")
    assert responder.wait()["finish_reason"] == "stop" and responder.deltas == ["Yes"]


def test_an_audio_only_request_gets_no_text(orchestrator, stages):
    responder = ask(orchestrator, stages, modalities=["audio"])
    stages.finish("thinker", 0, "text", text="Yes")
    stages.finish("talker", 0, "progress")
    stages.finish("code2wav", 0, "audio")
    assert "stages" in responder.wait() and responder.deltas == []


def test_a_bad_request_opens_nothing(orchestrator, stages):
    responder = ask(orchestrator, colour=1)
    assert isinstance(responder.wait(), InvalidRequest) and not stages.opened


def test_a_fault_in_reading_a_request_is_that_requests_alone(orchestrator, stages, monkeypatch):
    def broken(*given):
        raise ZeroDivisionError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr("python_backends.orchestrator.orchestrator.parse_request", broken)
        assert ask(orchestrator).wait().code == "internal"
    responder = ask(orchestrator, stages, modalities=["text"])
    stages.finish("thinker", 0, "text", text="Yes")
    assert responder.wait()["finish_reason"] == "stop"


def test_while_the_server_can_take_nothing_new_requests_are_refused_and_the_others_go_on(stages, tmp_path):
    refusals = []
    orchestrator = Orchestrator(
        f"ipc://{tmp_path}/full", stages.open, ChunkSchedule(4, 25), refusal=lambda: next(iter(refusals), None)
    )
    running = ask(orchestrator, stages, modalities=["text"])
    refusals.append(Overloaded("full", 5))
    assert ask(orchestrator, modalities=["text"]).wait().code == "overloaded"
    assert len(stages.opened) == 1
    stages.finish("thinker", 0, "text", text="Yes")
    assert running.wait()["finish_reason"] == "stop"
    refusals.clear()
    ask(orchestrator, stages, modalities=["text"])
    orchestrator.close()


def test_a_refusal_frees_the_stages_opened_before(orchestrator, stages):
    stages.refuse["talker"] = InvalidRequest("speaker", "unknown")
    responder = ask(orchestrator)
    assert "speaker" in str(responder.wait())
    assert stages.aborted("code2wav") and stages.quiet("talker") and stages.quiet("thinker")


@pytest.mark.parametrize("seq", [0, 2])
def test_a_gap_or_repeat_ends_that_stream_alone(orchestrator, stages, seq):
    responder = ask(orchestrator, stages)
    stages.send("thinker", 0, "text", meta={"text": "a"})
    stages.send("thinker", seq, "text", meta={"text": "b"})
    assert responder.wait().code == "protocol"
    assert all(stages.aborted(name) for name in stages.inboxes)


def test_an_error_of_a_stage_reaches_the_client_and_frees_the_others(orchestrator, stages):
    responder = ask(orchestrator, stages)
    stages.send("talker", 0, "abort", finished=True, error=("invalid_request", "no such row"))
    error = responder.wait()
    assert (error.code, str(error)) == ("invalid_request", "no such row")
    assert stages.aborted("thinker") and stages.aborted("code2wav")


class TritonRequest:
    """Stands for what the caller of `submit` has in its hands."""


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("reason", ["bad request", "overloaded", "stage refuses", "stage cannot be asked", "engine"])
@pytest.mark.usefixtures("no_collector")
def test_an_error_keeps_nothing_of_the_callers(stages, tmp_path, reason):
    """Triton's requests must be freed by their last use: the collector may come when their memory is gone."""
    limits = Limits(max_in_flight=1, max_queued=0) if reason == "overloaded" else Limits()
    orchestrator = Orchestrator(f"ipc://{tmp_path}/bls", stages.open, ChunkSchedule(4, 25), limits=limits)
    first = ask(orchestrator, stages) if reason == "overloaded" else None
    if reason == "stage refuses":
        stages.refuse["talker"] = InvalidRequest("speaker", "unknown")
    elif reason == "stage cannot be asked":
        stages.broken.add("thinker")
    responder = RecordingResponder()

    def execute():
        request = TritonRequest()
        fields = {"colour": 1} if reason == "bad request" else {}
        body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
        orchestrator.submit(json.dumps(body), responder)
        return weakref.ref(request)

    request = execute()
    if reason == "engine":
        stages.wait_opened(3)
        stages.send("talker", 0, "abort", finished=True, error=("invalid_request", "no such row"))
    assert isinstance(responder.wait(), OmniError)
    if first is not None:
        orchestrator.close()
        assert first.wait().code == "shutting_down"
    else:
        orchestrator.close()
    responder.result = None
    assert request() is None


def test_a_cancelled_request_is_freed_everywhere(orchestrator, stages):
    responder = ask(orchestrator, stages)
    responder.gone = True
    assert responder.wait().code == "cancelled"
    assert all(stages.aborted(name) for name in stages.inboxes)


def test_the_death_of_an_engine_ends_its_streams_and_no_others(orchestrator, stages):
    spoken = ask(orchestrator, stages)
    silent = ask(orchestrator, stages, modalities=["text"])
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
    first = ask(orchestrator, stages)
    reply = stages.payload("talker")["reply"]
    stages.sender.send(reply, [Chunk("*", "talker", 0, "abort", True, meta={"instance": "talker@1"})])
    first.wait()
    assert ask(orchestrator).wait().code == "stage_failed"


def test_a_late_chunk_of_an_ended_stream_is_ignored(orchestrator, stages):
    responder = ask(orchestrator, stages, modalities=["text"])
    stages.finish("thinker", 0, "text", text="Yes")
    responder.wait()
    stages.send("thinker", 1, "text", meta={"text": "more"})
    other = ask(orchestrator, stages, modalities=["text"])
    payload = stages.opened[-1][1]
    meta = {"text": "", "reason": "stop", "usage": {}}
    stages.sender.send(payload["reply"], [Chunk(payload["stream_id"], "thinker", 0, "text", True, meta=meta)])
    other.wait()
    assert responder.ends == 1 and responder.deltas == ["Yes"]


def test_close_ends_every_stream_with_an_error(stages, tmp_path):
    orchestrator = Orchestrator(f"ipc://{tmp_path}/bls2", stages.open, ChunkSchedule(1, 25, True, 4, 2))
    responder = ask(orchestrator, stages)
    assert ChunkSchedule(**stages.payload("talker")["schedule"]) == ChunkSchedule(1, 25, True, 4, 2)
    orchestrator.close()
    assert responder.wait().code == "shutting_down"


def test_a_burst_is_opened_by_few_calls_and_each_stream_gets_its_own_answer(orchestrator, stages):
    """At most three calls for the request whose turn it is, three for all that came meanwhile, one for text alone."""
    stages.may_open.clear()
    first = ask(orchestrator, modalities=["text"])
    burst = [ask(orchestrator) for _ in range(10)]
    stages.may_open.set()
    stages.wait_opened(1 + 3 * 10)
    assert len(stages.calls) <= 7 and sum(count for _, count in stages.calls) == 31
    for name, payload in list(stages.opened):
        meta = {"text": "", "reason": "stop", "usage": {}}
        tensors = {"audio": np.empty(0, np.float32)}
        chunk = Chunk(
            payload["stream_id"], name, 0, "audio" if name == "code2wav" else "text", True, None, meta, tensors
        )
        stages.sender.send(payload["reply"], [chunk])
    assert len({responder.wait()["id"] for responder in [first, *burst]}) == 11


def test_text_alone_does_not_wait_for_a_talker_that_hangs(stages, tmp_path):
    hangs, released = threading.Event(), threading.Event()

    def open_stage(name, payloads):
        if name == "talker":
            hangs.set()
            released.wait(PATIENT_S)
        return stages.open(name, payloads)

    orchestrator = Orchestrator(f"ipc://{tmp_path}/hung", open_stage, ChunkSchedule(4, 25))
    try:
        spoken = ask(orchestrator)
        assert hangs.wait(PATIENT_S)
        silent = ask(orchestrator, modalities=["text"])
        stages.wait_opened(2)
        assert [name for name, _ in stages.opened] == ["code2wav", "thinker"]
        stages.finish("thinker", 0, "text", text="Yes")
        assert silent.wait()["finish_reason"] == "stop" and spoken.result is None
        released.set()
        stages.wait_opened(4)
    finally:
        released.set()
        orchestrator.close()


def test_a_stage_that_cannot_be_asked_fails_the_streams_and_frees_the_others(orchestrator, stages):
    stages.broken.add("thinker")
    responder = ask(orchestrator)
    assert responder.wait().code == "stage_failed"
    assert stages.aborted("code2wav") and stages.aborted("talker")


@pytest.mark.parametrize(
    "wrong", [[], [{}], [{"data": "ipc://x"}], [None], [None] * 2], ids=["none", "empty", "half", "null", "more"]
)
def test_a_stage_that_answers_an_opening_wrongly_fails_that_request_and_not_the_next(stages, tmp_path, wrong):
    """The thread that opens streams lives on, or each later request would wait for ever."""
    answers = [wrong]

    def open_stage(name, payloads):
        return answers.pop() if name == "thinker" and answers else stages.open(name, payloads)

    orchestrator = Orchestrator(f"ipc://{tmp_path}/wrong", open_stage, ChunkSchedule(4, 25))
    try:
        assert ask(orchestrator).wait().code == "stage_failed"
        assert stages.aborted("code2wav") and stages.aborted("talker")
        stages.opened.clear()
        responder = ask(orchestrator, stages, modalities=["text"])
        stages.finish("thinker", 0, "text", text="Yes")
        assert responder.wait()["finish_reason"] == "stop"
        assert ask(orchestrator, stages) is not None
    finally:
        orchestrator.close()


def test_a_notice_that_says_nothing_is_dropped_and_what_follows_arrives(orchestrator, stages):
    responder = ask(orchestrator, stages, modalities=["text"])
    stages.sender.send(stages.payload("thinker")["reply"], [Chunk("*", "thinker", 0, "abort", True)])
    stages.finish("thinker", 0, "text", text="Yes")
    assert responder.wait()["finish_reason"] == "stop"


def test_a_request_after_close_is_refused(stages, tmp_path):
    orchestrator = Orchestrator(f"ipc://{tmp_path}/closed", stages.open, ChunkSchedule(4, 25))
    orchestrator.close()
    assert ask(orchestrator).wait().code == "shutting_down"


def test_a_request_that_cannot_be_started_is_answered_all_the_same(stages, tmp_path):
    def refusal():
        raise OSError("too many open files")

    orchestrator = Orchestrator(f"ipc://{tmp_path}/odd", stages.open, ChunkSchedule(4, 25), refusal=refusal)
    try:
        assert isinstance(ask(orchestrator).wait(), OmniError)
    finally:
        orchestrator.close()


def test_what_arrives_together_leaves_as_one_response(orchestrator, stages):
    responder = ask(orchestrator, stages)
    name = {name: payload["stream_id"] for name, payload in stages.opened}["thinker"]
    chunks = [Chunk(name, "thinker", seq, "text", meta={"text": str(seq)}) for seq in range(5)]
    chunks += [Chunk(name, "code2wav", seq, "audio", tensors={"audio": np.ones(2, np.float32)}) for seq in range(3)]
    end = {"reason": "stop", "usage": {}}
    chunks += [Chunk(name, "talker", 0, "progress", True, meta=end)]
    chunks += [Chunk(name, "thinker", 5, "text", True, meta=end | {"text": "."})]
    chunks += [Chunk(name, "code2wav", 3, "audio", True, None, end, {"audio": np.empty(0, np.float32)})]
    stages.sender.send(stages.payload("thinker")["reply"], chunks)
    responder.wait()
    assert responder.responses == 1 and responder.ends == 1
    assert responder.deltas == ["01234."] and responder.chunks[0].size == 6


def test_a_client_that_takes_its_time_holds_up_no_other(orchestrator, stages):
    slow = ask(orchestrator, stages, modalities=["text"])
    gate = threading.Event()
    send = slow.send
    slow.send = lambda *answer: (gate.wait(PATIENT_S), send(*answer))
    stages.send("thinker", 0, "text", meta={"text": "a"})
    others = []
    for _ in range(12):
        quick = ask(orchestrator, stages, modalities=["text"])
        others.append((quick, stages.opened[-1][1]))
    # Each stream keeps to one of a few threads: of twelve streams some have another than the slow one.
    for _, payload in others:
        meta = {"text": "ok", "reason": "stop", "usage": {}}
        chunk = Chunk(payload["stream_id"], "thinker", 0, "text", True, meta=meta)
        stages.sender.send(payload["reply"], [chunk])
    wait_until(lambda: any(other.result for other, _ in others), PATIENT_S, "some stream ends beside the slow one")
    assert slow.result is None
    gate.set()
    stages.finish("thinker", 1, "text", text="b")
    assert all(other.wait() for other, _ in others) and slow.wait() and "".join(slow.deltas) == "ab"
