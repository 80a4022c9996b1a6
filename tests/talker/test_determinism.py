"""Sampled codes of a seed are the same on both output paths, for every chunking, with any mates, in any bucket."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule
from python_backends.talker.engine import TalkerEngine
from python_backends.talker.options import TalkerOptions
from python_backends.talker.request import TalkerRequest, TextChunk
from tests.talker.fake_runner import DelayedTransfer
from tests.talker.oracle import USER, chat
from tests.talker.sinks import RecordingSink, drain

FRAMES = 6
SAMPLINGS = (
    TalkerSampling(max_tokens=FRAMES),
    TalkerSampling(max_tokens=FRAMES, top_k=0, top_p=0.9, temperature=1.3, predictor_top_k=20),
    TalkerSampling(max_tokens=FRAMES, top_k=0, predictor_top_p=1.0, repetition_penalty=1.5),
    TalkerSampling(max_tokens=FRAMES, temperature=0.0),
)


def digests(checkpoint, streams, schedule=None, transfer=None, **options) -> dict[str, str]:
    """SHA-256 of the codes of each of `streams` (numbers from 0 to 3), all opened at once."""
    sink = RecordingSink()
    chosen = {"max_num_seqs": 4, "max_model_len": 96, **options}
    engine = TalkerEngine(checkpoint, TalkerOptions(**chosen), sink, transfer)
    names = [str(number) for number in streams]
    for number in streams:
        prompt = np.array(chat((USER, list(range(50, 53 + 5 * number)))), dtype=np.int32)
        engine.add(
            TalkerRequest(str(number), "ethan", SAMPLINGS[number], 2**40 + number, schedule or ChunkSchedule(2, 3))
        )
        engine.feed(str(number), TextChunk(np.array([number + 7, 30, 31]), True, prompt))
    drain(engine, sink, names)
    engine.close()
    assert all(not sink.of(name).errors for name in names)
    return {name: sink.of(name).digest for name in names}


@pytest.fixture(scope="module")
def reference(talker_checkpoint) -> dict[str, str]:
    found = digests(talker_checkpoint, range(4))
    assert len(set(found.values())) == 4
    return found


def test_asynchronous_equals_synchronous(talker_checkpoint, reference):
    assert digests(talker_checkpoint, range(4), transfer=DelayedTransfer(2)) == reference


@pytest.mark.parametrize("schedule", [ChunkSchedule(1, 1), ChunkSchedule(4, 25), ChunkSchedule(steady=0)])
def test_chunk_sizes_change_nothing(talker_checkpoint, reference, schedule):
    assert digests(talker_checkpoint, range(4), schedule) == reference


def test_mates_and_buckets_change_nothing(talker_checkpoint, reference):
    for streams in ([0], [1, 0], [3, 2, 1]):
        for name, digest in digests(talker_checkpoint, streams).items():
            assert digest == reference[name]


def test_slots_and_prefill_portions_change_nothing(talker_checkpoint, reference):
    assert digests(talker_checkpoint, [3, 1, 0, 2], max_prefill_rows=5, max_num_seqs=3) == reference


def test_batch_invariant_steps_have_one_shape(talker_checkpoint, reference):
    options = TalkerOptions(max_num_seqs=4, batch_invariant=True)
    assert options.buckets == (4,)
    together = digests(talker_checkpoint, range(4), batch_invariant=True, max_prefill_rows=7)
    for number in range(4):
        alone = digests(talker_checkpoint, [number], batch_invariant=True, max_prefill_rows=7)
        assert alone[str(number)] == together[str(number)]
