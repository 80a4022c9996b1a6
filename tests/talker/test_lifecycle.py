"""Streams from open to end: starvation, limits, aborts, refusals. The model is a fake."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.config.errors import InvalidRequest, OmniError, Overloaded, ProtocolError, StageFailed
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule
from python_backends.talker import engine as engine_module
from python_backends.talker.engine import TalkerEngine
from python_backends.talker.options import TalkerOptions
from python_backends.talker.request import TalkerRequest, TextChunk
from tests.talker.fake_runner import FakeRunner, expected_codes
from tests.talker.oracle import USER, chat
from tests.talker.sinks import RecordingSink, drain

PROMPT = np.array(chat((USER, [10, 11])), dtype=np.int32)
TTS_PAD, TTS_EOS = 151671, 151673


@pytest.fixture
def make(monkeypatch, talker_checkpoint):
    """Build an engine on a fake runner; gives (engine, sink, runner)."""
    monkeypatch.setattr(engine_module, "TalkerRunner", FakeRunner)
    engines = []

    def build(sink: RecordingSink | None = None, **options):
        sink = sink or RecordingSink()
        chosen = {"max_num_seqs": 2, "max_model_len": 8192, **options}
        engine = TalkerEngine(talker_checkpoint, TalkerOptions(**chosen), sink)
        engines.append(engine)
        return engine, sink, engine._runner

    yield build
    for engine in engines:
        engine.close()


def request(stream_id: str = "a", frames: int = 4096, seed: int = 5, schedule=None, **sampling) -> TalkerRequest:
    chosen = TalkerSampling(max_tokens=frames, **sampling)
    return TalkerRequest(stream_id, "ethan", chosen, seed, schedule or ChunkSchedule(1, 3))


def chunk(ids: list[int], finished: bool = False, first: bool = False) -> TextChunk:
    return TextChunk(np.array(ids, dtype=np.int32), finished, PROMPT if first else None)


def settle(engine: TalkerEngine) -> None:
    """Step until nothing more can be done."""
    while engine.step():
        pass


def texts(runner: FakeRunner) -> list[int]:
    return [int(rows[0, 1]) for rows in runner.steps]


def test_a_row_waits_for_text_then_ends_it_then_pads(make):
    engine, sink, runner = make()
    engine.add(request(frames=6))
    engine.feed("a", chunk([], first=True))
    settle(engine)
    assert texts(runner) == [] and len(runner.prefilled) == 1
    engine.feed("a", chunk([100, 101]))
    settle(engine)
    assert texts(runner) == [100, 101]
    settle(engine)
    assert texts(runner) == [100, 101], "a starving row must neither skip nor pad"
    engine.feed("a", chunk([102], finished=True))
    drain(engine, sink, ["a"])
    assert texts(runner) == [100, 101, 102, TTS_EOS, TTS_PAD, TTS_PAD]
    prompt_rows = len(PROMPT) - 3 + 8
    assert [int(rows[0, 2]) for rows in runner.steps] == [prompt_rows + frame for frame in range(6)]
    np.testing.assert_array_equal(sink.of("a").codes, expected_codes(5, 6))
    assert sink.of("a").finishes[0].usage == {"frames": 6, "seed": 5, "prompt_rows": prompt_rows + 1}


def test_a_starving_row_lets_others_speak(make):
    engine, sink, runner = make()
    for stream_id in "ab":
        engine.add(request(stream_id, frames=5))
    engine.feed("a", chunk([100], first=True))
    engine.feed("b", chunk([200], finished=True, first=True))
    drain(engine, sink, ["b"])
    assert sink.of("b").ends == 1 and sink.of("a").ends == 0
    engine.feed("a", chunk([], finished=True))
    drain(engine, sink, ["a"])
    np.testing.assert_array_equal(sink.of("a").codes, expected_codes(5, 5))


def test_4096_frames_are_a_hard_stop(make):
    engine, sink, _ = make()
    engine.add(request())
    engine.feed("a", chunk([1], finished=True, first=True))
    drain(engine, sink, ["a"])
    finish = sink.of("a").finishes[0]
    assert (finish.reason, finish.usage["frames"]) == ("length", 4096)
    np.testing.assert_array_equal(sink.of("a").codes, expected_codes(5, 4096))


def test_the_context_is_a_limit_too(make):
    engine, sink, _ = make(max_model_len=40)
    engine.add(request())
    engine.feed("a", chunk([1], finished=True, first=True))
    drain(engine, sink, ["a"])
    finish = sink.of("a").finishes[0]
    assert finish.reason == "length"
    assert finish.usage["frames"] + finish.usage["prompt_rows"] - 1 == 40


def test_the_first_chunk_grows_when_a_burst_comes_before_its_end(make):
    """Chosen as 1 frame on an idle server; the second chunk would be late for the player once many speak."""
    schedule = ChunkSchedule(1, 25, doubling=True, loaded_initial=4, idle_streams=2)
    engine, sink, _ = make(max_num_seqs=4)
    engine.add(request("alone", frames=10, schedule=schedule))
    engine.feed("alone", chunk([1] * 10, finished=True, first=True))
    drain(engine, sink, ["alone"])
    assert [len(part) for part in sink.of("alone").chunks] == [1, 2, 4, 3]
    for stream_id in "abc":
        engine.add(request(stream_id, frames=10, schedule=schedule))
        engine.feed(stream_id, chunk([1] * 10, finished=True, first=True))
    drain(engine, sink, ["a", "b", "c"])
    for stream_id in "abc":
        assert [len(part) for part in sink.of(stream_id).chunks] == [4, 6]
        np.testing.assert_array_equal(sink.of(stream_id).codes, expected_codes(5, 10))


def test_an_end_token_stops_without_a_frame(make):
    engine, sink, runner = make()
    runner.natural_end = lambda seed: 4
    engine.add(request())
    engine.feed("a", chunk([1], finished=True, first=True))
    drain(engine, sink, ["a"])
    assert sink.of("a").finishes[0].reason == "stop"
    np.testing.assert_array_equal(sink.of("a").codes, expected_codes(5, 4))
    assert [len(part) for part in sink.of("a").chunks] == [1, 3, 0]


@pytest.mark.parametrize("late", [False, True])
def test_an_empty_answer_ends_at_once(make, late):
    engine, sink, runner = make()
    engine.add(request())
    engine.feed("a", chunk([], finished=not late, first=True))
    if late:
        settle(engine)
        engine.feed("a", chunk([], finished=True))
    drain(engine, sink, ["a"])
    assert sink.of("a").finishes[0].reason == "stop" and sink.of("a").finishes[0].usage["frames"] == 0
    assert runner.steps == [] and len(sink.of("a").codes) == 0


def test_full_payload_is_one_chunk(make):
    engine, sink, _ = make()
    engine.add(request(frames=30, schedule=ChunkSchedule(steady=0)))
    engine.feed("a", chunk([1], finished=True, first=True))
    drain(engine, sink, ["a"])
    assert [len(part) for part in sink.of("a").chunks] == [30]


def test_a_drawn_seed_is_reported(make):
    engine, sink, runner = make()
    engine.add(request(frames=3, seed=None))
    engine.feed("a", chunk([1], finished=True, first=True))
    drain(engine, sink, ["a"])
    seed = sink.of("a").finishes[0].usage["seed"]
    np.testing.assert_array_equal(sink.of("a").codes, expected_codes(seed, 3))


def test_refusals_name_the_field(make):
    engine, _, _ = make(max_waiting=1)
    for field, bad in [
        ("speaker", TalkerRequest("x", "nobody")),
        ("seed", TalkerRequest("x", "ethan", seed=-1)),
        ("seed", TalkerRequest("x", "ethan", seed=1 << 64)),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            engine.add(bad)
        assert caught.value.field == field
    for stream_id in "abc":
        engine.add(request(stream_id))
    with pytest.raises(Overloaded):
        engine.add(request("d"))
    engine.abort("a")
    engine.step()
    engine.add(request("d"))
    with pytest.raises(InvalidRequest):
        engine.add(request("b"))


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([chunk([1])], ProtocolError),
        ([chunk([1], first=True), chunk([2], first=True)], ProtocolError),
        ([chunk([1], finished=True, first=True), chunk([2])], ProtocolError),
        ([chunk([-5], first=True)], InvalidRequest),
        ([TextChunk(np.array([1]), False, np.array([10, 11]))], InvalidRequest),
        ([TextChunk(np.array([1]), False, np.tile(PROMPT, 1500))], InvalidRequest),
        ([TextChunk(np.array([1]), False, np.array(chat((USER, [151655]))))], InvalidRequest),
    ],
)
def test_a_bad_chunk_ends_its_stream_alone(make, chunks, error):
    engine, sink, _ = make()
    for stream_id in "ab":
        engine.add(request(stream_id, frames=3))
    engine.feed("b", chunk([1], finished=True, first=True))
    for bad in chunks:
        engine.feed("a", bad)
    drain(engine, sink, ["a", "b"])
    assert isinstance(sink.of("a").errors[0], error) and sink.of("a").ends == 1
    np.testing.assert_array_equal(sink.of("b").codes, expected_codes(5, 3))
    assert engine.stats()["open"] == 0 or engine.step() is False


def test_abort_frees_the_slot_and_silences_the_stream(make):
    engine, sink, _ = make(max_num_seqs=1)
    engine.add(request("a"))
    engine.feed("a", chunk([1], finished=True, first=True))
    for _ in range(5):
        engine.step()
    engine.abort("a")
    calls = len(sink.of("a").chunks)
    engine.add(request("b", frames=4, seed=9))
    engine.feed("b", chunk([1], finished=True, first=True))
    engine.feed("a", chunk([2]))
    drain(engine, sink, ["b"])
    assert len(sink.of("a").chunks) == calls and sink.of("a").ends == 0
    np.testing.assert_array_equal(sink.of("b").codes, expected_codes(9, 4))
    engine.abort("unknown")


class AbortingSink(RecordingSink):
    """Aborts the stream from within its own call."""

    engine: TalkerEngine

    def codes(self, stream_id, codes, finish):
        super().codes(stream_id, codes, finish)
        self.engine.abort(stream_id)


def test_abort_from_within_a_sink_call(make):
    sink = AbortingSink()
    engine, _, _ = make(sink)
    sink.engine = engine
    engine.add(request())
    engine.feed("a", chunk([1], finished=True, first=True))
    settle(engine)
    assert len(sink.of("a").chunks) == 1 and sink.of("a").ends == 0 and engine.stats()["open"] == 0


class BrokenSink(RecordingSink):
    """Fails on chosen streams."""

    broken = {"a": ValueError("no room"), "c": OmniError("gone", "cancelled")}

    def codes(self, stream_id, codes, finish):
        if stream_id in self.broken:
            raise self.broken[stream_id]
        super().codes(stream_id, codes, finish)


def test_a_sink_error_ends_exactly_its_stream(make):
    engine, sink, _ = make(BrokenSink(), max_num_seqs=3)
    for stream_id in "abc":
        engine.add(request(stream_id, frames=4))
        engine.feed(stream_id, chunk([1], finished=True, first=True))
    drain(engine, sink, ["a", "b", "c"])
    assert isinstance(sink.of("a").errors[0], StageFailed) and sink.of("c").errors[0].code == "cancelled"
    np.testing.assert_array_equal(sink.of("b").codes, expected_codes(5, 4))
    assert not sink.late


def test_closing_fails_open_streams(make):
    engine, sink, _ = make()
    engine.add(request())
    engine.close()
    assert isinstance(sink.of("a").errors[0], StageFailed)
    with pytest.raises(StageFailed):
        engine.add(request("b"))


def test_a_broken_step_ends_every_stream_and_is_raised(make):
    engine, sink, runner = make()
    runner.decode = lambda rows, widest=0: 1 / 0
    engine.add(request())
    engine.feed("a", chunk([1], finished=True, first=True))
    with pytest.raises(ZeroDivisionError):
        engine.step()
    assert isinstance(sink.of("a").errors[0], StageFailed)


def test_long_prompts_are_computed_in_parts_between_decodes(make):
    engine, sink, runner = make(max_prefill_rows=8)
    engine.add(request("b", frames=12))
    engine.feed("b", chunk([1], finished=True, first=True))
    while not runner.steps:
        engine.step()
    before = len(runner.prefilled)
    engine.add(request("a", frames=2))
    engine.feed("a", TextChunk(np.array([1]), True, np.array(chat((USER, list(range(40)))), dtype=np.int32)))
    steps = len(runner.steps)
    engine.step()
    assert len(runner.prefilled) == before + 1 and len(runner.steps) == steps + 1
    drain(engine, sink, ["a", "b"])
    assert all(sum(part.count for part in parts) <= 8 for parts in runner.prefilled)


@pytest.mark.parametrize("ids", [None, [[1, 2]], ["x"], [float("nan")]], ids=str)
def test_a_chunk_that_cannot_be_read_ends_its_stream_alone(make, ids):
    engine, sink, _ = make()
    for name in ("bad", "good"):
        engine.add(request(name, frames=2))
    engine.feed("bad", TextChunk(ids, True, PROMPT))
    engine.feed("good", chunk([1], finished=True, first=True))
    drain(engine, sink, ["bad", "good"])
    assert isinstance(sink.of("bad").errors[0], InvalidRequest) and not sink.of("good").errors


IMAGE, VISION_START, VISION_END = 151655, 151652, 151653
PICTURE = np.array(chat((USER, [VISION_START, *[IMAGE] * 4, VISION_END, 5])), dtype=np.int32)


@pytest.mark.parametrize(
    ("rows", "grid", "field"),
    [
        (np.full((4, 32), np.nan, np.float32), [[1, 4, 4]], "multimodal.hidden_rows"),
        (np.full((4, 32), np.inf, np.float32), [[1, 4, 4]], "multimodal.hidden_rows"),
        (np.full((4, 32), "x"), [[1, 4, 4]], "multimodal.hidden_rows"),
        (np.zeros((4, 32), np.float32), [[1, 6, 4]], "multimodal"),
        (np.zeros((4, 32), np.float32), [[1, 2, 2]], "multimodal"),
        (np.zeros((4, 32), np.float32), [[float("inf"), 4, 4]], "multimodal"),
    ],
    ids=["nan", "inf", "text", "large grid", "small grid", "infinite grid"],
)
def test_media_that_do_not_fit_end_their_stream(make, rows, grid, field):
    engine, sink, _ = make()
    width = engine._shape.thinker_hidden
    rows = np.resize(rows, (4, width))
    media = MultimodalPrompt(np.flatnonzero(PICTURE == IMAGE), rows, image_grid_thw=np.array(grid))
    engine.add(request("bad", frames=2))
    engine.feed("bad", TextChunk(np.array([1], np.int32), True, PICTURE, media))
    fits = MultimodalPrompt(media.positions, np.zeros((4, width), np.float32), image_grid_thw=np.array([[1, 4, 4]]))
    engine.add(request("good", frames=2))
    engine.feed("good", TextChunk(np.array([1], np.int32), True, PICTURE, fits))
    drain(engine, sink, ["bad", "good"])
    assert sink.of("bad").errors[0].field == field and not sink.of("good").errors


def test_streams_that_end_while_they_wait_for_a_slot_are_forgotten(make):
    engine, sink, _ = make(max_num_seqs=1, max_waiting=4)
    engine.add(request("holds"))
    engine.feed("holds", chunk([], first=True))
    settle(engine)
    for number in range(20):
        engine.add(request(f"s{number}"))
        engine.feed(f"s{number}", chunk([1], first=True))
        engine.step()
        engine.abort(f"s{number}")
    engine.step()
    assert engine.stats()["waiting"] == 0 and engine.stats()["open"] == 1
