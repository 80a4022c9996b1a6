"""How streams begin and end, and what the engine refuses."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.engine import Code2WavEngine
from python_backends.code2wav.options import Code2WavOptions, Code2WavRequest
from python_backends.config.errors import InvalidRequest, Overloaded, ProtocolError, StageFailed
from python_backends.config.stage import Finish


def run(engine) -> None:
    while engine.step():
        pass


def test_a_stream_without_frames_ends_with_empty_audio(make_engine, sink):
    engine = make_engine()
    engine.add(Code2WavRequest("s"))
    engine.feed("s", np.zeros((0, 16), np.int64), finished=True)
    run(engine)
    assert sink.waveform("s").shape == (0,)
    assert sink.ended["s"] == Finish("stop", {"samples": 0, "frames": 0})
    assert engine.stats()["open"] == 0


def test_the_end_may_come_after_the_last_frame(make_engine, sink, random_codes, reference):
    engine, codes = make_engine(), random_codes(5)
    engine.add(Code2WavRequest("s"))
    engine.feed("s", codes, finished=False)
    run(engine)
    assert "s" not in sink.ended
    engine.feed("s", codes[:0], finished=True)
    run(engine)
    assert sink.ended["s"] == Finish("stop", {"samples": len(reference(codes)), "frames": 5})
    assert len(sink.chunks["s"][-1]) == 0


def test_the_end_may_come_while_the_last_frame_is_being_decoded(make_engine, sink, random_codes, reference):
    engine, codes = make_engine(), random_codes(5)
    launch = engine._runner.launch

    def launch_beside_the_end(*step):
        engine.feed("s", codes[:0], finished=True)
        return launch(*step)

    engine._runner.launch = launch_beside_the_end
    engine.add(Code2WavRequest("s"))
    engine.feed("s", codes, finished=False)
    run(engine)
    np.testing.assert_allclose(sink.waveform("s"), reference(codes), atol=1e-5)
    assert sink.ended["s"] == Finish("stop", {"samples": len(reference(codes)), "frames": 5})


@pytest.mark.parametrize(
    "codes",
    [
        np.full((2, 16), 64),
        np.full((2, 16), -1),
        np.zeros((2, 15), np.int64),
        np.zeros(16, np.int64),
        np.zeros((2, 16), np.float32),
    ],
    ids=["too large", "negative", "too few groups", "one axis", "floats"],
)
def test_codes_that_are_none_end_their_stream_alone(make_engine, sink, random_codes, reference, codes):
    engine, good = make_engine(), random_codes(8)
    for name in ("good", "bad"):
        engine.add(Code2WavRequest(name))
        engine.feed(name, good[:4], finished=False)
    run(engine)
    engine.feed("bad", codes, finished=False)
    engine.feed("good", good[4:], finished=True)
    engine.feed("bad", good, finished=True)
    run(engine)
    assert isinstance(sink.ended["bad"], InvalidRequest)
    assert sink.ended["bad"].field == "codes"
    np.testing.assert_allclose(sink.waveform("good"), reference(good), rtol=0, atol=1e-5)
    assert engine.stats()["slots_free"] == 3


def test_codes_after_the_last_chunk_are_a_protocol_error(make_engine, sink, random_codes):
    engine = make_engine()
    engine.add(Code2WavRequest("s"))
    engine.feed("s", random_codes(2), finished=True)
    engine.feed("s", random_codes(2), finished=False)
    run(engine)
    assert isinstance(sink.ended["s"], ProtocolError)


def test_a_stream_longer_than_the_position_table_is_refused(make_engine, sink, code2wav_config):
    engine = make_engine()
    engine.add(Code2WavRequest("s"))
    engine.feed("s", np.zeros((code2wav_config.max_position_embeddings + 1, 16), np.int64), finished=True)
    run(engine)
    assert isinstance(sink.ended["s"], InvalidRequest)


def test_more_streams_than_slots_queue_and_then_are_refused(make_engine, sink, random_codes, reference):
    engine = make_engine(max_num_seqs=2, max_waiting=1)
    for index in range(3):
        engine.add(Code2WavRequest(f"s{index}"))
        engine.feed(f"s{index}", random_codes(6, index), finished=True)
    with pytest.raises(Overloaded):
        engine.add(Code2WavRequest("s3"))
    assert engine.stats() | {"running": 2, "waiting": 1, "slots_free": 0} == engine.stats()
    run(engine)
    for index in range(3):
        np.testing.assert_allclose(sink.waveform(f"s{index}"), reference(random_codes(6, index)), rtol=0, atol=1e-5)
    assert engine.stats()["slots_free"] == 2


def test_an_id_in_use_is_refused_and_free_again_after_the_end(make_engine, random_codes):
    engine = make_engine()
    engine.add(Code2WavRequest("s"))
    with pytest.raises(InvalidRequest, match="already open"):
        engine.add(Code2WavRequest("s"))
    engine.feed("s", random_codes(1), finished=True)
    run(engine)
    engine.add(Code2WavRequest("s"))
    engine.abort("s")


def test_abort_frees_the_slot_and_silences_the_stream(make_engine, sink, random_codes):
    engine = make_engine(max_num_seqs=1)
    engine.add(Code2WavRequest("s"))
    engine.add(Code2WavRequest("next"))
    engine.feed("s", random_codes(30), finished=False)
    engine.step()
    heard = len(sink.chunks["s"])
    engine.abort("s")
    engine.feed("s", random_codes(30), finished=True)
    engine.feed("next", random_codes(3), finished=True)
    run(engine)
    assert len(sink.chunks["s"]) == heard
    assert "s" not in sink.ended
    assert "next" in sink.ended
    engine.abort("never opened")


def test_abort_of_a_queued_stream(make_engine, sink, random_codes):
    engine = make_engine(max_num_seqs=1)
    engine.add(Code2WavRequest("s"))
    engine.add(Code2WavRequest("queued"))
    engine.abort("queued")
    assert engine.stats()["waiting"] == 0


@pytest.mark.parametrize("field, values", [("stream_id", ("", "float32")), ("sample_format", ("s", "int8"))])
def test_bad_requests(field, values):
    with pytest.raises(InvalidRequest) as caught:
        Code2WavRequest(*values)
    assert caught.value.field == field


def test_a_device_error_fails_every_stream_and_is_raised(make_engine, sink, random_codes, monkeypatch):
    engine = make_engine()
    engine.add(Code2WavRequest("a"))
    engine.add(Code2WavRequest("b"))
    engine.feed("a", random_codes(1), finished=True)

    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine._runner, "launch", broken)
    with pytest.raises(RuntimeError):
        engine.step()
    assert all(isinstance(sink.ended[name], StageFailed) for name in "ab")
    with pytest.raises(StageFailed):
        engine.add(Code2WavRequest("c"))


def test_a_sink_that_raises_loses_its_stream_alone(make_engine, sink, random_codes, monkeypatch):
    engine, audio = make_engine(), sink.audio

    def refuse(stream_id, samples, finish):
        if stream_id == "bad":
            raise ConnectionError("gone")
        audio(stream_id, samples, finish)

    monkeypatch.setattr(sink, "audio", refuse)
    for name in ("bad", "good"):
        engine.add(Code2WavRequest(name))
        engine.feed(name, random_codes(4), finished=False)
    engine.step()
    assert engine.stats()["open"] == 1
    engine.feed("good", random_codes(4), finished=True)
    run(engine)
    assert "good" in sink.ended


def test_close_ends_open_streams(make_engine, sink):
    engine = make_engine()
    engine.add(Code2WavRequest("s"))
    engine.close()
    assert isinstance(sink.ended["s"], StageFailed)


def test_wait_for_work_wakes_on_feed(make_engine, random_codes):
    engine = make_engine()
    engine.add(Code2WavRequest("s"))
    engine.wait_for_work(0.0)
    assert not engine.step()
    waiter = threading.Thread(target=engine.wait_for_work, args=(60.0,))
    waiter.start()
    engine.feed("s", random_codes(1), finished=True)
    waiter.join(timeout=60)
    assert not waiter.is_alive()
    assert engine.step()


def test_feeds_from_many_threads(make_engine, sink, random_codes, reference):
    engine = make_engine(max_num_seqs=4)
    codes = {f"s{index}": random_codes(20, index) for index in range(6)}
    for name in codes:
        engine.add(Code2WavRequest(name))

    def feed(name: str) -> None:
        for start in range(0, 20, 5):
            engine.feed(name, codes[name][start : start + 5], finished=start == 15)

    threads = [threading.Thread(target=feed, args=(name,)) for name in codes]
    for thread in threads:
        thread.start()
    while len(sink.ended) < len(codes):
        if not engine.step():
            engine.wait_for_work(1.0)
    for thread in threads:
        thread.join()
    for name in codes:
        np.testing.assert_allclose(sink.waveform(name), reference(codes[name]), rtol=0, atol=1e-5)


def test_dummy_weights_need_only_a_config(code2wav_checkpoint, sink, random_codes):
    options = Code2WavOptions(load_format="dummy", max_num_seqs=1)
    engine = Code2WavEngine(code2wav_checkpoint / "config.json", options, sink)
    engine.add(Code2WavRequest("s"))
    engine.feed("s", random_codes(2), finished=True)
    run(engine)
    assert sink.waveform("s").std() > 0.01
    engine.close()


def test_a_sink_that_refuses_a_failure_keeps_no_other_stream_from_its_own(make_engine, sink, random_codes):
    engine, told = make_engine(), []
    sink.failed = lambda stream_id, error: told.append(stream_id) or (_ for _ in ()).throw(ConnectionError("gone"))
    for name in ("a", "b", "c"):
        engine.add(Code2WavRequest(name))
    engine.feed("a", np.full((2, 16), -1), finished=False)
    run(engine)
    engine.close()
    assert told == ["a", "b", "c"]


def test_a_sink_error_does_not_drop_the_next_stream_of_the_same_id(make_engine, sink, random_codes, reference):
    engine, codes, audio = make_engine(), random_codes(5), sink.audio

    def refuse_after_the_next_is_open(stream_id, samples, finish):
        sink.audio = audio
        engine.abort("a")
        engine.add(Code2WavRequest("a"))
        raise ConnectionError("gone")

    sink.audio = refuse_after_the_next_is_open
    engine.add(Code2WavRequest("a"))
    engine.feed("a", codes, finished=True)
    run(engine)
    engine.feed("a", codes, finished=True)
    run(engine)
    np.testing.assert_allclose(sink.waveform("a"), reference(codes), atol=1e-5)


def test_a_window_without_context_is_refused():
    with pytest.raises(ValueError, match="sliding_window"):
        Code2WavConfig(sliding_window=1)
