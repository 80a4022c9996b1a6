"""Which streams a step takes."""

from __future__ import annotations

import numpy as np

from python_backends.code2wav.options import SAMPLE_RATE, Code2WavOptions
from python_backends.code2wav.scheduler import DeadlineScheduler
from python_backends.code2wav.stream import Code2WavStream


def stream(
    order: int, pending: int, *, started: float | None = None, audio_s: float = 0.0, ready: float = 0.0
) -> Code2WavStream:
    made = Code2WavStream(f"s{order}", "float32", order, 16, slot=order)
    made.put(np.zeros((pending, 16), np.int64), False, ready)
    made.first_packet_at = started
    made.samples = int(audio_s * SAMPLE_RATE)
    return made


def names(plan) -> list[str]:
    return [row.stream_id for row in plan.streams]


def scheduler(**options) -> DeadlineScheduler:
    return DeadlineScheduler(Code2WavOptions(**{"batch_wait_ms": 0.0, "max_num_seqs": 8, **options}))


def test_playback_that_runs_out_first_goes_first():
    rows = [
        stream(0, 25, started=0.0, audio_s=9.0),
        stream(1, 25, started=4.0, audio_s=2.0),
        stream(2, 25, started=1.0, audio_s=6.0),
    ]
    plan = scheduler(max_step_frames=50).plan(rows, now=5.0)
    assert names(plan) == ["s1", "s2"]
    assert plan.frames == 25


def test_first_chunks_go_before_all_oldest_first():
    rows = [stream(3, 1), stream(2, 1), stream(0, 25, started=0.0, audio_s=0.1)]
    plan = scheduler().plan(rows, now=5.0)
    assert names(plan) == ["s2", "s3"]
    assert plan.frames == 1


def test_only_chunks_of_one_bucket_share_a_step():
    rows = [stream(0, 13, started=0.0), stream(1, 8, started=1.0), stream(2, 25, started=2.0)]
    plan = scheduler().plan(rows, now=5.0)
    assert (names(plan), plan.frames) == (["s0", "s1"], 8)


def test_a_chunk_waits_for_mates_but_not_longer_than_configured():
    rows = [stream(0, 4, started=0.0, ready=5.0), stream(1, 0, started=0.0)]
    rule = scheduler(batch_wait_ms=10.0)
    waiting = rule.plan(rows, now=5.005)
    assert not waiting.streams
    assert abs(waiting.due_at - 5.010) < 1e-9
    assert names(rule.plan(rows, now=5.011)) == ["s0"]


def test_nobody_left_to_wait_for():
    rows = [stream(0, 4, started=0.0, ready=5.0), stream(1, 4, started=0.0, ready=5.0)]
    assert names(scheduler(batch_wait_ms=10.0).plan(rows, now=5.0)) == ["s0", "s1"]


def test_a_first_chunk_does_not_wait():
    rows = [stream(0, 4, ready=5.0), stream(1, 0, started=0.0)]
    assert names(scheduler(batch_wait_ms=10.0).plan(rows, now=5.0)) == ["s0"]


def test_a_group_that_is_due_is_not_held_by_a_more_urgent_one_that_waits():
    rows = [
        stream(0, 4, started=0.0, ready=5.0),
        stream(1, 25, started=0.0, audio_s=60.0, ready=4.0),
        stream(2, 0, started=0.0),
    ]
    assert names(scheduler(batch_wait_ms=10.0).plan(rows, now=5.0)) == ["s1"]


def test_a_step_is_bounded_in_frames_and_streams():
    rows = [stream(index, 50, started=0.0) for index in range(8)]
    plan = scheduler(max_step_frames=200).plan(rows, now=1.0)
    assert (len(plan.streams), plan.frames) == (4, 50)
    assert not scheduler().plan([], now=1.0).streams


def test_buckets_of_the_options():
    options = Code2WavOptions(max_num_seqs=40, codec_chunk_frames=20)
    assert options.batch_sizes() == (1, 2, 4, 8, 16, 24, 32, 40)
    assert options.frame_sizes() == (1, 2, 4, 8, 16, 20, 25, 50)
