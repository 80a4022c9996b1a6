"""The orchestrator's limits: what waits, what is refused, what time ends, what a shutdown does."""

import threading
import time

import pytest

from python_backends.config.stage import ChunkSchedule
from python_backends.connectors.chunk import Chunk
from python_backends.orchestrator.limits import Limits
from python_backends.orchestrator.orchestrator import Orchestrator
from tests.orchestrator.stages import ask


def limited(stages, tmp_path, **limits):
    return Orchestrator(f"ipc://{tmp_path}/limited", stages.open, ChunkSchedule(4, 25), limits=Limits(**limits))


def test_a_request_beyond_the_limits_waits_and_the_next_is_refused(stages, tmp_path):
    orchestrator = limited(stages, tmp_path, max_in_flight=1, max_queued=1)
    first = ask(orchestrator, stages, modalities=["text"])
    waiting = ask(orchestrator, modalities=["text"])
    refused = ask(orchestrator, modalities=["text"]).wait()
    assert refused.code == "overloaded" and "; retry_after_s=" in str(refused)
    assert len(stages.opened) == 1 and not waiting.done.is_set()
    stages.finish("thinker", 0, "text", text="Yes")
    first.wait()
    stages.wait_opened(2)
    orchestrator.close()


@pytest.mark.parametrize("limit", ["queue_s", "first_audio_s", "total_s"])
def test_a_time_limit_ends_its_stream_and_frees_its_stages(stages, tmp_path, limit):
    orchestrator = limited(stages, tmp_path, max_in_flight=1 if limit == "queue_s" else 2)
    ask(orchestrator, stages)
    late = ask(
        orchestrator, None if limit == "queue_s" else stages, timeouts={limit: 0.05 if limit == "queue_s" else 2.0}
    )
    assert late.wait().code == "timeout" and limit in str(late.result)
    if limit != "queue_s":
        assert all(stages.aborted(name) for name in stages.inboxes)
    orchestrator.close()


def test_at_shutdown_what_waits_is_refused_and_what_runs_has_a_little_time(stages, tmp_path):
    orchestrator = limited(stages, tmp_path, max_in_flight=1, drain_s=2.0)
    running = ask(orchestrator, stages, modalities=["text"])
    waiting = ask(orchestrator, modalities=["text"])
    started = time.monotonic()
    reply = stages.payload("thinker")["reply"]
    stages.sender.send(reply, [Chunk("*", "thinker", 0, "abort", True, meta={"stopping": True})])
    assert waiting.wait().code == "shutting_down" and not running.done.is_set()
    assert running.wait().code == "shutting_down" and time.monotonic() - started >= 2.0
    assert stages.aborted("thinker")
    orchestrator.close()


def test_full_payload_mode_tells_the_thinker_to_hold_its_ids(stages, tmp_path):
    orchestrator = Orchestrator(f"ipc://{tmp_path}/whole", stages.open, ChunkSchedule(4, 0))
    ask(orchestrator, stages)
    assert stages.payload("thinker")["hold_ids"] is True
    assert stages.payload("talker")["schedule"]["steady"] == 0
    orchestrator.close()


def test_a_server_that_ends_by_itself_refuses_what_comes_and_lets_run_what_runs(stages, tmp_path):
    """Operating, runtime directory removed under a running server: clients are told, what runs has a little time."""
    orchestrator = limited(stages, tmp_path, drain_s=3600)
    running = ask(orchestrator, stages, modalities=["text"])
    orchestrator.drain()
    assert ask(orchestrator, modalities=["text"]).wait().code == "shutting_down"
    stages.finish("thinker", 0, "text", text="Yes")
    assert running.wait()["finish_reason"] == "stop"
    orchestrator.close()


def test_requests_that_come_while_it_closes_are_all_answered(stages, tmp_path):
    orchestrator = limited(stages, tmp_path, max_in_flight=4, max_queued=1000)
    asked, closing = [], threading.Event()

    def asks():
        while True:
            asked.append(responder := ask(orchestrator, modalities=["text"]))
            if closing.is_set() and responder.done.is_set():
                return

    threads = [threading.Thread(target=asks) for _ in range(4)]
    for thread in threads:
        thread.start()
    stages.wait_opened(4)
    closing.set()
    orchestrator.close()
    for thread in threads:
        thread.join()
    assert {responder.wait().code for responder in asked} <= {"shutting_down", "overloaded"}
    assert all(responder.ends == 1 for responder in asked) and len(orchestrator) == 0
