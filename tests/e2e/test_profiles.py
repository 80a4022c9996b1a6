"""The profile with replicas, and full-payload mode, through a real tritonserver with real engines on the CPU."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from client.streaming import OmniClient, OmniClientError
from python_backends.config.stage import ChunkSchedule
from tests.e2e.played import CollectingResponder, orchestrator_with
from tests.e2e.prompts import PROMPTS
from tests.e2e.test_streaming import ask_all
from tests.server import RESTART_S, SOONER_S, STAGES, TEXT_ONLY, Server, wait_until


def sampled(name: str, seed: int) -> dict:
    request = PROMPTS[name].request(seed=seed)
    request["sampling"] = {"thinker": {"temperature": 1.0, "max_tokens": 30}, "talker": {"max_tokens": 40}}
    return request


REQUESTS = [sampled(name, seed) for seed, name in enumerate(("greeting", "chinese", "long", "system prompt"))]
ENDLESS = PROMPTS["long"].request()
ENDLESS["sampling"] = {
    "thinker": {"ignore_eos": True, "max_tokens": 1500},
    "talker": {"ignore_eos": True, "max_tokens": 1500},
}


@pytest.fixture(scope="module")
def expected(server):
    """What one engine a stage answers, one request at a time."""
    return [ask_all(server, [request])[0] for request in REQUESTS]


@pytest.fixture(scope="module")
def replicas(tiny_checkpoint, tmp_path_factory, expected):
    log, profile = tmp_path_factory.mktemp("replicas") / "server.log", TEXT_ONLY.with_name("text_only_replicas.yaml")
    with (
        tempfile.TemporaryDirectory(prefix="omni-") as tmp,  # short enough for the sockets in it
        Server(tiny_checkpoint, log, profile, env={"TMPDIR": tmp}) as server,
    ):
        server.tmp = Path(tmp)
        yield server


def instances(server, stage: str) -> list[str]:
    return [replica["instance"] for replica in server.status(stage)["replicas"]]


def assert_same(got, want) -> None:
    assert got.text == want.text
    np.testing.assert_allclose(got.audio, want.audio, rtol=0, atol=1e-5)


def test_two_replicas_answer_as_one_does(replicas, expected):
    opened = {stage: instances(replicas, stage) for stage in STAGES}
    assert opened == {
        "thinker": ["thinker-0@1"],
        "talker": ["talker-0@1", "talker-1@1"],
        "code2wav": ["code2wav-0@1", "code2wav-1@1"],
    }
    for got, want in zip(ask_all(replicas, REQUESTS), expected, strict=True):
        assert_same(got, want)


def test_a_killed_replica_is_passed_over_and_comes_back(replicas, expected):
    async def run():
        async with OmniClient(replicas.url) as client:
            tasks = [asyncio.ensure_future(client.ask(ENDLESS)) for _ in range(2)]
            try:
                while [one["open"] for one in replicas.status("talker")["replicas"]] != [1, 1]:
                    await asyncio.sleep(0.02)
                os.kill(replicas.status("talker")["replicas"][0]["pid"], signal.SIGKILL)
                killed = time.monotonic()
                done, _ = await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
                seconds, (failed,) = time.monotonic() - killed, done
                with pytest.raises(OmniClientError) as caught:
                    failed.result()
                during = await client.ask(REQUESTS[0])
                assert sum(task.done() for task in tasks) == 1, "the other replica's stream goes on"
                return caught.value, seconds, during
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    error, seconds, during = asyncio.run(run())
    assert error.code == "stage_failed" and seconds < SOONER_S
    assert_same(during, expected[0])
    back = ["talker-0@2", "talker-1@1"]
    wait_until(
        lambda: [one["instance"] for one in replicas.status("talker")["replicas"]] == back,
        RESTART_S,
        "the replica is back",
    )
    for got, want in zip(ask_all(replicas, REQUESTS), expected, strict=True):
        assert_same(got, want)


def test_full_payload_mode_says_the_same_after_the_last_text(server, expected, tmp_path):
    """A second orchestrator on the server's engines, whose stages wait for the whole of the one before."""
    orchestrator = orchestrator_with(server, tmp_path, ChunkSchedule(4, 0))
    try:
        responders = [CollectingResponder() for _ in REQUESTS]
        for request, responder in zip(REQUESTS, responders, strict=True):
            orchestrator.submit(json.dumps(request), responder)
        for responder, want in zip(responders, expected, strict=True):
            timings = responder.wait()["timings_ms"]
            assert timings["first_audio"] > timings["talker_done"] > timings["thinker_done"]
            assert "".join(responder.deltas) == want.text
            np.testing.assert_allclose(responder.wave, want.audio, rtol=0, atol=1e-5)
    finally:
        orchestrator.close()


def test_a_stopped_server_leaves_nothing_behind(replicas):
    """The last test of the module: it stops the server, one of whose engines may have been killed before."""
    tmp = replicas.tmp
    (runtime_dir,) = tmp.glob("qwen3-omni.*")
    shared_memory = f"omni_{runtime_dir.suffix[1:]}_"
    assert any(name.startswith(shared_memory) for name in os.listdir("/dev/shm"))
    processes = _processes_of(runtime_dir)
    engines = {replica["pid"] for stage in STAGES for replica in replicas.status(stage)["replicas"]}
    assert len(engines) == 5 and engines <= set(processes)
    assert len(processes) >= 10, "five engines, tritonserver and four stubs"
    replicas.stop()
    left = [pid for pid in processes if os.path.exists(f"/proc/{pid}")]
    assert not left, f"still running: {left}"
    assert not list(tmp.iterdir())
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(shared_memory)]


def _processes_of(runtime_dir: Path) -> list[int]:
    """Processes of one server: its runtime directory is in the environment of all of them and of no other."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if f"OMNI_RUNTIME_DIR={runtime_dir}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except (OSError, ValueError):
            continue  # no process, or one that has just ended
    return found
