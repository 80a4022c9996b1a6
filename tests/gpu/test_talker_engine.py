"""The Talker on a GPU, graphs captured: float32 against transformers, and what must not change a code."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule
from python_backends.talker.engine import TalkerEngine
from python_backends.talker.model.shapes import read_shape
from python_backends.talker.options import TalkerOptions
from python_backends.talker.request import TalkerRequest, TextChunk
from tests.gpu.conftest import DEVICE
from tests.talker.oracle import ASSISTANT, SYSTEM, USER, chat, speak
from tests.talker.sinks import RecordingSink, drain

STREAMS, FRAMES, ANSWER_FRAMES = 64, 24, 7
PROMPTS = (
    (chat((USER, [100])), 1),
    (chat((USER, list(range(500, 700)))), 2),
    (chat((SYSTEM, [40, 41, 42]), (USER, [7, 8]), (ASSISTANT, [9, 10, 11]), (USER, [12])), 4),
)


@pytest.mark.parametrize("graphs", [True, False], ids=["captured", "eager"])
def test_float32_equals_transformers(oracle_model, talker_checkpoint, graphs):
    """Captured, prefill included: on a GPU in float32 the Talker once did not start."""
    answers = [speak(oracle_model, prompt, text, ANSWER_FRAMES) for prompt, text in PROMPTS]
    sink = RecordingSink()
    options = TalkerOptions(device=DEVICE, max_num_seqs=4, max_model_len=512, cuda_graphs=graphs, kernels="triton")
    engine = TalkerEngine(talker_checkpoint, options, sink)
    assert engine.synchronous_because is None
    sampling = TalkerSampling(temperature=0.0, max_tokens=ANSWER_FRAMES)
    for name, answer in enumerate(answers):
        engine.add(TalkerRequest(str(name), "ethan", sampling, None, ChunkSchedule(2, 3)))
        engine.feed(str(name), answer.chunk)
    drain(engine, sink, [str(name) for name in range(len(answers))])
    engine.close()
    for name, answer in enumerate(answers):
        np.testing.assert_array_equal(sink.of(str(name)).codes, answer.codes[:ANSWER_FRAMES])


def digests(engine: TalkerEngine, sink: RecordingSink, numbers: list[int], schedule=None) -> list[str]:
    """SHA-256 of the codes of streams that speak FRAMES frames at once, each with a seed and texts of its own."""
    sink.streams.clear()
    for number in numbers:
        prompt = chat((USER, [(row * 7 + number) % 1000 + 2000 for row in range(100)]))
        text = (np.arange(16) * 11 + number) % 1000 + 3000
        sampling = TalkerSampling(max_tokens=FRAMES, ignore_eos=True)
        engine.add(TalkerRequest(str(number), "ethan", sampling, 77 + number, schedule or ChunkSchedule(4, 25)))
        engine.feed(str(number), TextChunk(text, True, np.array(prompt)))
    drain(engine, sink, [str(number) for number in numbers])
    assert all(len(sink.of(str(number)).codes) == FRAMES for number in numbers)
    return [sink.of(str(number)).digest for number in numbers]


def published(config, sink, **options) -> TalkerEngine:
    assert "ethan" in read_shape(config).speakers
    chosen = dict(device=DEVICE, dtype="bfloat16", max_num_seqs=STREAMS, max_model_len=512, load_format="dummy")
    return TalkerEngine(config, TalkerOptions(**{**chosen, **options}), sink)


def test_neither_output_path_nor_chunks_nor_mates_change_a_code(published_widths):
    """All prompts in one portion, so that every step of every stream runs in the bucket of a full batch."""
    everyone, rows = list(range(STREAMS)), STREAMS * 128
    first = None
    for asynchronous in (True, False):
        sink = RecordingSink()
        engine = published(published_widths, sink, async_output=asynchronous, max_prefill_rows=rows)
        for schedule in (ChunkSchedule(4, 25), ChunkSchedule(1, 1), ChunkSchedule(3, 7), ChunkSchedule(steady=0)):
            found = digests(engine, sink, everyone, schedule)
            first = first or found
            assert found == first
        half = STREAMS // 2
        strangers = digests(engine, sink, [*range(1000, 1000 + half), *everyone[:half]])
        assert strangers[half:] == first[:half]
        engine.close()
    assert len(set(first)) == STREAMS


def test_batch_invariant_codes_are_those_of_a_stream_alone(published_widths):
    sink = RecordingSink()
    engine = published(published_widths, sink, batch_invariant=True)
    together = digests(engine, sink, list(range(STREAMS)))
    for number in range(4):
        assert digests(engine, sink, [number]) == [together[number]]
    engine.close()
