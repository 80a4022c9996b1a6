"""Hidden rows: which are taken, when they are complete, how they travel."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from python_backends.thinker.capture.plan import CAPTURE_ARG, CapturePlan, Slice
from python_backends.thinker.capture.taker import RowTaker
from python_backends.thinker.capture.transport import RowReceiver, RowSender
from python_backends.thinker.options import ThinkerOptions
from python_backends.thinker.rows import RowCollector
from tests.thinker.test_media import case, check

MEDIA, WORD = 9, 1


class Batch:
    """What CapturePlan reads of vLLM's SchedulerOutput."""

    def __init__(self, new=(), cached=(), finished=(), scheduled=None):
        self.finished_req_ids = set(finished)
        self.scheduled_new_reqs = [
            SimpleNamespace(
                req_id=name,
                prompt_token_ids=ids,
                num_computed_tokens=computed,
                sampling_params=SimpleNamespace(extra_args=extra),
            )
            for name, ids, computed, extra in new
        ]
        names, computed = zip(*cached, strict=True) if cached else ((), ())
        self.scheduled_cached_reqs = SimpleNamespace(req_ids=list(names), num_computed_tokens=list(computed))
        self.num_scheduled_tokens = scheduled or {}


def taken(plan, batch, order):
    plan.update(batch)
    return [(s.stream, s.first, s.stop, s.positions.tolist(), s.offsets.tolist()) for s in plan.slices(batch, order)]


def test_rows_of_one_prefill_beside_others():
    plan = CapturePlan([MEDIA])
    ids = [WORD, MEDIA, MEDIA, WORD, MEDIA, WORD]
    batch = Batch(
        new=[("a", [WORD] * 4, 0, None), ("b", ids, 0, {CAPTURE_ARG: "B"})], scheduled={"a": 4, "b": 6, "c": 1}
    )
    assert taken(plan, batch, ["c", "a", "b"]) == [("B", 6, 10, [1, 2, 4], [0, 1, 3])]
    assert len(plan) == 0


def test_chunks_and_a_preemption_take_each_row_once():
    plan = CapturePlan([MEDIA])
    ids = [MEDIA] * 10 + [WORD]
    first = Batch(new=[("b", ids, 0, {CAPTURE_ARG: "B"})], scheduled={"b": 4})
    assert taken(plan, first, ["b"]) == [("B", 0, 4, [0, 1, 2, 3], [0, 1, 2, 3])]
    # Preempted and started anew, in one chunk that goes further than before.
    again = Batch(cached=[("b", 0)], scheduled={"b": 6})
    assert taken(plan, again, ["b"]) == [("B", 4, 6, [4, 5], [0, 1])]
    # The second model runner sends a resumed request as a new one.
    resumed = Batch(new=[("b", ids, 3, {CAPTURE_ARG: "B"})], scheduled={"b": 8, "x": 2})
    assert taken(plan, resumed, ["x", "b"]) == [("B", 5, 9, [6, 7, 8, 9], [0, 1, 2, 3])]
    assert len(plan) == 0


def test_finished_request_is_forgotten():
    plan = CapturePlan([MEDIA])
    plan.update(Batch(new=[("b", [MEDIA] * 4, 0, {CAPTURE_ARG: "B"})]))
    assert len(plan) == 1
    plan.update(Batch(finished=["b"]))
    assert len(plan) == 0


def test_collector_waits_for_all_and_drops_repeats():
    collector, done = RowCollector(), []
    collector.expect("s", np.array([3, 5, 6, 8]), done.append)
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    collector.receive("s", np.array([5, 8]), rows[[1, 3]])
    collector.receive("s", np.array([5, 3]), np.stack([rows[1] + 100, rows[0]]))
    collector.receive("other", np.array([1]), rows[:1])
    assert done == []
    collector.receive("s", np.array([6]), rows[[2]])
    np.testing.assert_array_equal(done[0], rows)
    assert len(collector) == 0


def test_lost_rows_and_forgotten_streams():
    collector, done = RowCollector(), []
    collector.expect("lost", np.array([1]), done.append)
    collector.receive("lost", np.array([1]), np.empty((1, 0), dtype=np.float32))
    assert done == [None]
    collector.expect("gone", np.array([1]), done.append)
    collector.forget("gone")
    collector.receive("gone", np.array([1]), np.ones((1, 2), dtype=np.float32))
    assert done == [None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_paths_give_the_same_bits_and_a_later_step_changes_nothing(dtype):
    piece = Slice("s", 2, 6, np.array([7, 8, 10]), np.array([0, 1, 3]))
    values = torch.randn(8, 4).to(dtype)
    found = {}
    for synchronous in (True, False):
        buffer, got = values.clone(), threading.Event()

        def send(stream, positions, rows, synchronous=synchronous, got=got):
            found[synchronous] = rows
            got.set()

        taker = RowTaker(buffer, send, synchronous)
        taker.take([piece])
        buffer.zero_()
        assert got.wait(60)
        taker.close()
    np.testing.assert_array_equal(found[True], found[False])
    np.testing.assert_array_equal(found[True], values.float().numpy()[[2, 3, 5]])
    assert found[True].dtype == np.float32


def test_rows_cross_processes():
    got, arrived = [], threading.Event()

    def receive(*message):
        got.append(message)
        arrived.set()

    receiver = RowReceiver(receive)
    code = (
        "import numpy as np\n"
        "from python_backends.thinker.capture.transport import RowSender\n"
        "send = RowSender()\n"
        "send('stream', np.array([1, 4]), np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32))\n"
        "input()\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        assert arrived.wait(60)
    finally:
        worker.communicate(b"\n")
    stream, positions, rows = got[0]
    assert (stream, positions.tolist(), rows.tolist()) == ("stream", [1, 4], [[1, 2, 3], [4, 5, 6]])
    # In one process no socket is used.
    RowSender()("here", positions, rows)
    assert got[1][2] is rows
    receiver.close()


def test_chunked_prefill_and_preemption(servers, tiny_checkpoint: Path, oracle, monkeypatch):
    """Chunks of 32 tokens, and a cache that cannot hold all streams: rows and ids stay those of `transformers`."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempted = []
    original = Scheduler._preempt_request
    monkeypatch.setattr(
        Scheduler,
        "_preempt_request",
        lambda self, request, *rest, **named: preempted.append(1) or original(self, request, *rest, **named),
    )
    engine_args = dict(max_num_batched_tokens=32, max_model_len=384, num_gpu_blocks_override=13, block_size=32)
    options = ThinkerOptions(model=str(tiny_checkpoint), dtype="float32", max_num_seqs=8, engine_args=engine_args)
    server = servers.get(options)
    names = ("two images", "audio", "two audios", "turns") * 2
    limit = 60
    wanted = {name: oracle.media(case(name)[0], limit, **case(name)[1]) for name in set(names)}
    streams = [(name, server.start(case(name)[0], max_tokens=limit)) for name in names]
    for name, stream_id in streams:
        check(server.sink.wait(stream_id, 120), wanted[name])
    assert preempted
