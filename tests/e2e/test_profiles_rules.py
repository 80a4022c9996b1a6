"""What a deploy profile rules, on a real tritonserver around played engines: replicas, limits, start and stop."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
import yaml

from client.streaming import OmniClient, OmniClientError, TextDelta
from tests.server import PATIENT_S, ROOT, SOONER_S, STAGES, STOP_S, Server, wait_until

PLAYED = {
    "ENGINE_PYTHON": str(ROOT / "tests" / "played_engine_python"),
    "PLAYED_PYTHON": sys.executable,
}
PROFILE = {
    "base_config": "cpu",
    "max_in_flight": 4,
    "max_queued": 2,
    "drain_timeout_s": 2.0,
    "stages": [
        {"stage_id": 0, "engine_options": {"step_ms": 10}},
        {"stage_id": 1, "replicas": 2, "engine_options": {"step_ms": 5}},
        {"stage_id": 2, "replicas": 2, "engine_options": {"step_ms": 0}},
    ],
}


def request(ids: int, frames: int = 8, **fields) -> dict:
    sampling = {"thinker": {"max_tokens": ids}, "talker": {"max_tokens": frames}}
    return {"messages": [{"role": "user", "content": "Hi"}], "sampling": sampling, **fields}


SHORT, ENDLESS = request(5), request(100_000, 4096)


def played_server(model, directory, profile, rendered: bool = True, options: Sequence[str] = ()) -> Server:
    """A server on a repository rendered for `profile`, or on the committed one with `profile` in its environment.

    `options`: more of tritonserver's own.
    """
    path = directory / "deploy.yaml"
    path.write_text(yaml.safe_dump(profile))
    if rendered:
        return Server(model, directory / "server.log", path, env=PLAYED, options=options)
    return Server(model, directory / "server.log", env=PLAYED | {"OMNI_DEPLOY_CONFIG": str(path)}, options=options)


@pytest.fixture(scope="module")
def played(tiny_checkpoint, tmp_path_factory):
    with played_server(tiny_checkpoint, tmp_path_factory.mktemp("played"), PROFILE) as server:
        yield server


class Running:
    """Requests under way in the background; all are cancelled at the end."""

    def __init__(self, url: str) -> None:
        self.client = OmniClient(url)
        self.tasks: list[asyncio.Task] = []

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(self, *exc) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.__aexit__()

    def start(self, *bodies: dict) -> list[asyncio.Task]:
        started = [asyncio.ensure_future(self._ask(body)) for body in bodies]
        self.tasks += started
        return started

    async def _ask(self, body: dict):
        stream = self.client.stream(body)
        try:
            return [event async for event in stream]
        finally:
            await stream.aclose()


async def until(condition, timeout_s: float = PATIENT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def code_of(task: asyncio.Task, timeout_s: float = PATIENT_S) -> OmniClientError:
    with pytest.raises(OmniClientError) as caught:
        await asyncio.wait_for(task, timeout_s)
    return caught.value


def open_by_replica(server: Server, stage: str) -> list[int]:
    return [replica["open"] for replica in server.status(stage)["replicas"]]


def test_every_replica_has_a_process_and_gets_its_share(played):
    async def run():
        async with Running(played.url) as running:
            running.start(*[ENDLESS] * 4)
            await until(lambda: played.status("thinker")["open"] == 4)
            return {stage: open_by_replica(played, stage) for stage in STAGES}

    assert asyncio.run(run()) == {"thinker": [4], "talker": [2, 2], "code2wav": [2, 2]}
    pids = {replica["pid"] for stage in STAGES for replica in played.status(stage)["replicas"]}
    assert len(pids) == 5


def test_a_dead_replica_fails_its_own_streams_and_is_passed_over_until_it_is_back(played):
    async def run():
        async with Running(played.url) as running:
            tasks = running.start(*[request(100_000, 400)] * 4)
            await until(lambda: open_by_replica(played, "talker") == [2, 2])
            victim = played.status("talker")["replicas"][0]["pid"]
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            await until(lambda: sum(task.done() for task in tasks) == 2)
            seconds = time.monotonic() - killed
            failed = [await code_of(task) for task in tasks if task.done()]
            assert [error.code for error in failed] == ["stage_failed"] * 2 and seconds < SOONER_S
            during = await asyncio.wait_for(running.start(SHORT)[0], PATIENT_S)
            assert during, "the other replica serves"
            assert sum(not task.done() for task in tasks) == 2, "its streams go on"

    asyncio.run(run())
    wait_until(lambda: len(played.status("talker")["replicas"]) == 2, PATIENT_S, "the replica is back")
    test_every_replica_has_a_process_and_gets_its_share(played)


def test_beyond_the_limits_requests_wait_and_then_are_refused_at_once(played):
    async def run():
        async with Running(played.url) as running:
            first = running.start(*[ENDLESS] * 4)
            await until(lambda: played.status("thinker")["open"] == 4)
            more = running.start(*[SHORT] * 3)
            await until(lambda: any(task.done() for task in more))
            refused = await code_of(next(task for task in more if task.done()))
            assert refused.code == "overloaded" and refused.retry_after_s >= 1
            waiting = [task for task in more if not task.done()]
            assert len(waiting) == 2 and played.status("thinker")["open"] == 4
            first[0].cancel()
            return await asyncio.wait_for(asyncio.gather(*waiting), PATIENT_S)

    assert all(asyncio.run(run())), "those that waited were served"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (request(100_000, 4096, timeouts={"total_s": 0.5}), "total_s"),
        (request(100_000, 4096, timeouts={"first_audio_s": 0.001}), "first_audio_s"),
    ],
    ids=["whole request", "first audio"],
)
def test_a_request_that_runs_out_of_time_ends_and_is_freed(played, body, reason):
    async def run():
        async with Running(played.url) as running:
            return await code_of(running.start(body)[0])

    error = asyncio.run(run())
    assert error.code == "timeout" and reason in str(error)
    played.wait_idle()


def test_a_request_that_waits_too_long_ends(played):
    async def run():
        async with Running(played.url) as running:
            running.start(*[ENDLESS] * 4)
            await until(lambda: played.status("thinker")["open"] == 4)
            return await code_of(running.start(SHORT | {"timeouts": {"queue_s": 0.3}})[0])

    error = asyncio.run(run())
    assert error.code == "timeout" and "queue_s" in str(error)


def counted(server: Server, what: str) -> float:
    """Triton's own counter of the model that answers clients."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=PATIENT_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(one.split()[-1]) for one in lines if one.startswith(f'{what}{{model="qwen3_omni"'))


def test_tritons_own_counters_call_refusals_successes(played):
    """Operating, Triton's own counters: as the docs say, an error is a response."""
    before = counted(played, "nv_inference_request_success"), counted(played, "nv_inference_request_failure")

    async def run():
        async with Running(played.url) as running:
            return await code_of(running.start({"messages": []})[0])

    assert asyncio.run(run()).code == "invalid_request"
    wait_until(lambda: counted(played, "nv_inference_request_success") == before[0] + 1, PATIENT_S, "it is counted")
    assert counted(played, "nv_inference_request_failure") == before[1]


def test_clients_that_do_not_read_harm_nobody_and_cost_one_answer_each(played):
    """Three clients send a request each and read nothing: their stages are free again, others do not wait."""
    frames, readers = 400, 3
    triton_pid = parent_of(parent_of(parent_of(played.status("thinker")["pid"])))

    async def run():
        clients = [triton.InferenceServerClient(played.url) for _ in range(readers)]
        sent = asyncio.Event()

        async def one():
            tensor = triton.InferInput("request", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([json.dumps(request(50, frames)).encode()], dtype=np.object_))
            yield {"model_name": "qwen3_omni", "inputs": [tensor]}
            await sent.wait()

        before = resident_mb(triton_pid)
        unread = [client.stream_infer(one()) for client in clients]
        await until(lambda: played.status("thinker")["open"] == readers)
        async with Running(played.url) as running:
            while played.status("code2wav")["open"]:
                await asyncio.wait_for(running.start(SHORT)[0], PATIENT_S)
        grown = resident_mb(triton_pid) - before
        sent.set()
        for stream in unread:
            stream.cancel()
        for client in clients:
            await client.close()
        return grown

    answers_mb = readers * frames * 1920 * 4 / 1e6
    assert asyncio.run(run()) < 4 * answers_mb + 30


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1e3


def test_at_shutdown_running_streams_have_a_bounded_time_and_nothing_is_left(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, PROFILE, rendered=False) as server:
        assert [len(server.status(stage)["replicas"]) for stage in STAGES] == [1, 2, 2]
        engines = [replica["pid"] for stage in STAGES for replica in server.status(stage)["replicas"]]
        runtime_dir = Path(environment_of(engines[0])["OMNI_RUNTIME_DIR"])
        assert runtime_dir.is_dir()

        async def run():
            async with Running(server.url) as running:
                short, endless = running.start(request(30, 30), ENDLESS)
                await until(lambda: server.status("code2wav")["open"] == 2)
                server.process.send_signal(signal.SIGTERM)
                stopped = time.monotonic()
                assert await asyncio.wait_for(short, PATIENT_S), "it had time to finish"
                error = await code_of(endless)
                return error.code, time.monotonic() - stopped

        code, seconds = asyncio.run(run())
        assert code == "shutting_down" and seconds < SOONER_S
        server.process.wait(STOP_S)
    assert not [pid for pid in engines if os.path.exists(f"/proc/{pid}")]
    assert not runtime_dir.exists()
    assert not [name for name in os.listdir("/dev/shm") if runtime_dir.suffix.strip(".") in name]


def test_at_shutdown_a_stage_stays_while_the_one_before_still_sends_to_it(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, PROFILE | {"drain_timeout_s": 3.0}) as server:
        talkers = [replica["pid"] for replica in server.status("talker")["replicas"]]

        async def run():
            async with Running(server.url) as running:
                writing = running.start(request(100_000, 2))[0]  # its Talker soon has no more to say
                await until(lambda: server.status("thinker")["open"] == 1 and server.status("talker")["open"] == 0)
                server.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(1.5)
                alive = [os.path.exists(f"/proc/{pid}") for pid in talkers]
                return alive, (await code_of(writing)).code

        assert asyncio.run(run()) == ([True, True], "shutting_down")
        server.process.wait(STOP_S)


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def test_a_text_only_profile_speaks_no_word(tiny_checkpoint, tmp_path):
    profile = {"modalities": ["text"], "stages": [{"stage_id": 0, "devices": "cpu", "engine_options": {"step_ms": 5}}]}
    with played_server(tiny_checkpoint, tmp_path, profile) as server:

        async def run():
            async with OmniClient(server.url) as client:
                answer = await client.ask(SHORT)
                with pytest.raises(OmniClientError) as caught:
                    await client.ask(SHORT | {"modalities": ["text", "audio"]})
                return answer, caught.value

        answer, error = asyncio.run(run())
    assert answer.text and answer.audio.size == 0 and list(answer.summary["stages"]) == ["thinker"]
    assert any(isinstance(event, TextDelta) for event in answer.events)
    assert error.code == "invalid_request" and "modalities" in str(error) and "text only" in str(error)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"stage_init_timeout_s": 0.01}, [], r"(thinker|talker|code2wav)-\d: was not ready within 0\.01 s"),
        ({"async_chnk": True}, [], "async_chnk: unknown key; did you mean async_chunk"),
        (
            {"drain_timeout_s": 4.0},
            ["--exit-timeout-secs", "4"],
            r"deploy\.yaml: drain_timeout_s: must be below tritonserver's --exit-timeout-secs, which is 4 ",
        ),
    ],
    ids=["too slow", "wrong key", "drain time is cut"],
)
def test_a_start_that_cannot_be_ends_with_a_sentence(tiny_checkpoint, tmp_path, change, options, message):
    server = played_server(tiny_checkpoint, tmp_path, PROFILE | change, options=options)
    with pytest.raises(AssertionError, match="the server ended with"), server:
        pass
    assert re.search(message, server.log.read_text())
