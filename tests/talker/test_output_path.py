"""Asynchronous output under stress: order, lifetime, errors, fall-backs."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch

from python_backends.config.errors import OmniError, Overloaded, StageFailed
from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule
from python_backends.engines_common.transfer import HostTransfer, PinnedTransfer
from python_backends.talker import engine as engine_module
from python_backends.talker.engine import TalkerEngine, why_synchronous
from python_backends.talker.options import TalkerOptions
from python_backends.talker.request import TalkerRequest, TextChunk
from tests.talker.fake_runner import DelayedTransfer, FakeRunner, expected_codes
from tests.talker.oracle import USER, chat
from tests.talker.sinks import RecordingSink, drain

PROMPT = np.array(chat((USER, [10])), dtype=np.int32)
REQUESTS = 2000


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(engine_module, "TalkerRunner", FakeRunner)


def build(checkpoint, sink, transfer=None, **options) -> TalkerEngine:
    chosen = {"max_num_seqs": 8, "max_waiting": 64, "max_model_len": 256, **options}
    return TalkerEngine(checkpoint, TalkerOptions(**chosen), sink, transfer or DelayedTransfer(2))


class FaultySink(RecordingSink):
    """Refuses the chunks of every 50th stream, from its second chunk on."""

    @staticmethod
    def refuses(stream_id: str) -> bool:
        return int(stream_id) % 50 == 7

    def codes(self, stream_id, codes, finish):
        if self.refuses(stream_id) and self.of(stream_id).chunks:
            raise RuntimeError(f"refused {stream_id}")
        super().codes(stream_id, codes, finish)


def test_two_thousand_requests_through_eight_slots(talker_checkpoint):
    chance = random.Random(1)
    sink = FaultySink()
    engine = build(talker_checkpoint, sink)
    engine._runner.natural_end = lambda seed: seed % 7 if seed % 3 == 0 else None
    frames = {str(number): 1 + number % 9 for number in range(REQUESTS)}
    aborted: set[str] = set()
    done = threading.Event()

    def feed() -> None:
        room = threading.Semaphore(0)
        for number in range(REQUESTS):
            stream_id = str(number)
            schedule = ChunkSchedule(1 + number % 3, 1 + number % 4)
            sampling = TalkerSampling(max_tokens=frames[stream_id])
            while True:
                try:
                    engine.add(TalkerRequest(stream_id, "ethan", sampling, number, schedule))
                    break
                except Overloaded:
                    room.acquire(timeout=0.0005)
            engine.feed(stream_id, TextChunk(np.array([5, 6]), False, PROMPT))
            if number % 97 == 5:
                aborted.add(stream_id)
                engine.abort(stream_id)
            else:
                engine.feed(stream_id, TextChunk(np.array([7] * chance.randrange(3)), True))
        done.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    while not (done.is_set() and engine.stats()["open"] == 0):
        if not engine.step():
            engine.join()
            engine.wait_for_work(0.001)
    feeder.join()
    engine.close()
    assert not sink.late
    for number in range(REQUESTS):
        stream_id = str(number)
        record = sink.of(stream_id)
        natural = number % 7 if number % 3 == 0 else frames[stream_id]
        expected = expected_codes(number, min(natural, frames[stream_id]))
        if stream_id in aborted:
            assert record.ends == 0
        elif record.errors:
            assert FaultySink.refuses(stream_id) and f"refused {stream_id}" in str(record.errors[0])
            np.testing.assert_array_equal(record.codes, expected[: len(record.codes)])
        else:
            np.testing.assert_array_equal(record.codes, expected)
        assert stream_id in aborted or record.ends == 1
    refused = [number for number in range(REQUESTS) if sink.of(str(number)).errors]
    assert 20 < len(refused) <= REQUESTS // 50


def open_one(engine: TalkerEngine, stream_id: str, frames: int, seed: int = 3) -> None:
    engine.add(TalkerRequest(stream_id, "ethan", TalkerSampling(max_tokens=frames), seed, ChunkSchedule(1, 2)))
    engine.feed(stream_id, TextChunk(np.array([5]), True, PROMPT))


class LosingTransfer(DelayedTransfer):
    """Loses the third copy."""

    waited = 0

    def wait(self, entry: int) -> np.ndarray:
        self.waited += 1
        codes = super().wait(entry)
        if self.waited == 3:
            raise OSError("copy lost")
        return codes


def test_a_lost_copy_fails_the_streams_of_that_step_alone(talker_checkpoint):
    sink = RecordingSink()
    engine = build(talker_checkpoint, sink, LosingTransfer(2))
    open_one(engine, "a", 30)
    drain(engine, sink, ["a"])
    assert isinstance(sink.of("a").errors[0], StageFailed) and "copy lost" in str(sink.of("a").errors[0])
    open_one(engine, "b", 10)
    drain(engine, sink, ["b"])
    np.testing.assert_array_equal(sink.of("b").codes, expected_codes(3, 10))
    engine.close()


class GatedSink(RecordingSink):
    """Blocks inside `codes` until it is let go, as a full queue would."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()

    def codes(self, stream_id, codes, finish):
        self.entered.set()
        self.gate.wait()
        super().codes(stream_id, codes, finish)


def test_a_blocked_builder_stops_launches_without_blocking_the_engine(talker_checkpoint):
    sink = GatedSink()
    engine = build(talker_checkpoint, sink)
    open_one(engine, "a", 20)
    while engine.step():
        pass
    sink.entered.wait()
    for _ in range(20):
        assert not engine.step()
    assert len(engine._runner.steps) <= engine._options.max_steps_in_flight + 1
    sink.gate.set()
    drain(engine, sink, ["a"])
    np.testing.assert_array_equal(sink.of("a").codes, expected_codes(3, 20))
    engine.close()


def test_closing_hands_over_what_was_launched(talker_checkpoint):
    sink = RecordingSink()
    engine = build(talker_checkpoint, sink, DelayedTransfer(2, longest_s=0.02))
    open_one(engine, "a", 2)
    open_one(engine, "b", 50)
    while len(engine._runner.steps) < 2:
        engine.step()
    engine.close()
    np.testing.assert_array_equal(sink.of("a").codes, expected_codes(3, 2))
    assert sink.of("a").finishes and isinstance(sink.of("b").errors[0], OmniError)
    engine.close()


@pytest.mark.parametrize("option", ["async_output", "async_chunk", "async_scheduling"])
def test_each_option_forces_the_synchronous_path_with_its_reason(option):
    assert why_synchronous(TalkerOptions(**{option: False}), can_copy_behind=True) == f"{option} is off"


def test_the_output_path_on_the_cpu_and_with_a_transfer(talker_checkpoint):
    plain = TalkerEngine(talker_checkpoint, TalkerOptions(max_num_seqs=1), RecordingSink())
    assert "pinned memory" in plain.synchronous_because
    with_transfer = build(talker_checkpoint, RecordingSink(), HostTransfer(2, 8, 16))
    assert with_transfer.synchronous_because is None
    plain.close()
    with_transfer.close()


def test_pageable_memory_is_refused_at_the_start(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    with pytest.raises(RuntimeError, match="pinned"):
        PinnedTransfer(2, 4, 16, torch.device("cpu"))
