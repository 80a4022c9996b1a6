"""Chunks, however cut and batched, join to the unchunked forward of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backends.code2wav.options import Code2WavRequest
from python_backends.config.stage import Finish
from tests.cpu import products_round_alike

TOLERANCE = 1e-5


def run(engine) -> None:
    while engine.step():
        pass


def stream_cuts(draw, frames: int) -> list[int]:
    cuts, left = [], frames
    while left:
        cuts.append(draw(st.integers(1, min(left, 60))))
        left -= cuts[-1]
    return cuts


@st.composite
def workloads(draw):
    """Streams as (frames, cuts), and the order in which their chunks arrive."""
    streams = []
    for frames in draw(st.lists(st.integers(1, 400), min_size=1, max_size=5)):
        streams.append((frames, stream_cuts(draw, frames)))
    turns = [index for index, (_, cuts) in enumerate(streams) for _ in cuts]
    return streams, draw(st.permutations(turns)), draw(st.integers(0, 2**32 - 1))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(workloads())
def test_random_cuts_in_random_batches_equal_the_unchunked_forward(
    make_engine, sink, reference, random_codes, workload
):
    streams, turns, seed = workload
    sink.chunks.clear()
    sink.ended.clear()
    engine = make_engine()
    codes = [random_codes(frames, seed + index) for index, (frames, _) in enumerate(streams)]
    for index in range(len(streams)):
        engine.add(Code2WavRequest(f"s{index}"))
    fed, cut = [0] * len(streams), [0] * len(streams)
    for turn in turns:
        size = streams[turn][1][cut[turn]]
        chunk = codes[turn][fed[turn] : fed[turn] + size]
        fed[turn] += size
        cut[turn] += 1
        engine.feed(f"s{turn}", chunk, finished=fed[turn] == streams[turn][0])
        engine.step()
    run(engine)
    for index, (frames, _) in enumerate(streams):
        expected = reference(codes[index])
        waveform = sink.waveform(f"s{index}")
        assert waveform.shape == expected.shape
        assert np.abs(waveform - expected).max() <= TOLERANCE
        assert sink.ended[f"s{index}"] == Finish("stop", {"samples": len(expected), "frames": frames})
    assert engine.stats()["slots_free"] == 3
    engine.close()


@pytest.mark.parametrize("frames", [1, 2, 11, 12, 13, 24, 73])
def test_one_frame_at_a_time_around_the_attention_window(make_engine, sink, reference, random_codes, frames):
    engine, codes = make_engine(), random_codes(frames)
    engine.add(Code2WavRequest("s"))
    for index in range(frames):
        engine.feed("s", codes[index : index + 1], finished=index + 1 == frames)
        assert engine.step()
    assert len(sink.chunks["s"]) == frames
    np.testing.assert_allclose(sink.waveform("s"), reference(codes), rtol=0, atol=TOLERANCE)


def test_the_oracle_is_audible_and_unclipped(reference, random_codes):
    waveform = reference(random_codes(50))
    assert waveform.std() > 0.01
    assert np.abs(waveform).max() < 1


def test_state_of_an_ended_stream_never_reaches_the_next_owner_of_its_slot(make_engine, sink, reference, random_codes):
    engine = make_engine(max_num_seqs=1)
    engine.add(Code2WavRequest("finished"))
    engine.feed("finished", random_codes(40, 1), finished=True)
    run(engine)
    engine.add(Code2WavRequest("aborted"))
    engine.feed("aborted", random_codes(30, 2), finished=False)
    run(engine)
    engine.abort("aborted")
    codes = random_codes(33, 3)
    engine.add(Code2WavRequest("next"))
    engine.feed("next", codes, finished=True)
    run(engine)
    np.testing.assert_allclose(sink.waveform("next"), reference(codes), rtol=0, atol=TOLERANCE)


def test_not_even_a_poisoned_slot_reaches_its_next_owner(make_engine, sink, reference, random_codes):
    engine, codes = make_engine(max_num_seqs=1), random_codes(9)
    for pool in engine._runner.state.pools():
        pool.fill_(float("nan"))
    engine.add(Code2WavRequest("s"))
    engine.feed("s", codes, finished=True)
    run(engine)
    np.testing.assert_allclose(sink.waveform("s"), reference(codes), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("cuts", [[1] * 33, [2, 31], [4, 25, 4], [16, 1, 16]], ids=str)
@pytest.mark.parametrize("mates", [0, 1, 2])
def test_cuts_and_mates_change_no_bit(make_engine, sink, random_codes, cuts, mates):
    codes = random_codes(33, 7)
    # Elsewhere products of other shapes round differently, and only steps of one shape change nothing.
    engine = make_engine(**({} if products_round_alike() else {"frame_buckets": (1,), "max_step_frames": 1}))
    engine.add(Code2WavRequest("whole"))
    engine.feed("whole", codes, finished=True)
    run(engine)
    names = ["cut", *(f"mate{number}" for number in range(mates))]
    for name in names:
        engine.add(Code2WavRequest(name))
    fed = 0
    for size in cuts:
        for seed, name in enumerate(names, 7):
            engine.feed(name, random_codes(33, seed)[fed : fed + size], finished=fed + size == 33)
        fed += size
        engine.step()
    run(engine)
    assert np.array_equal(sink.waveform("cut"), sink.waveform("whole"))
    assert not mates or not np.array_equal(sink.waveform("mate0"), sink.waveform("whole"))


def test_int16_is_the_rounded_waveform(make_engine, sink, reference, random_codes):
    engine, codes = make_engine(), random_codes(7)
    engine.add(Code2WavRequest("s", "int16"))
    engine.feed("s", codes, finished=True)
    run(engine)
    assert sink.waveform("s").dtype == np.int16
    assert np.abs(sink.waveform("s") - reference(codes) * 32767).max() <= 0.5 + 32767 * TOLERANCE


def test_bfloat16_is_no_worse_than_transformers_in_bfloat16(
    make_engine, sink, reference, reference_bfloat16, random_codes
):
    engine, codes = make_engine(dtype="bfloat16"), random_codes(60)
    engine.add(Code2WavRequest("s"))
    for start in range(0, 60, 4):
        engine.feed("s", codes[start : start + 4], finished=start == 56)
        engine.step()
    expected = reference(codes)

    def error(waveform: np.ndarray) -> float:
        return np.linalg.norm(waveform - expected) / np.linalg.norm(expected)

    assert error(sink.waveform("s")) < min(0.06, 1.1 * error(reference_bfloat16(codes)))
