"""A stub that is killed: its streams are told, and the server ends instead of failing every request from then on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.e2e.test_profiles_rules import ENDLESS, PROFILE, Running, code_of, parent_of, played_server, until
from tests.server import STAGES, wait_until

SINGLE = PROFILE | {"stages": [{**stage, "replicas": 1} for stage in PROFILE["stages"]]}


def stub_of(server, model: str) -> int:
    """Process id of a model's stub, a child of the server that the script started."""
    triton = parent_of(parent_of(server.status("thinker")["pid"]))
    for path in Path(f"/proc/{triton}/task/").glob("*/children"):
        for pid in path.read_text().split():
            if f"/{model}/1/model.py" in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
    raise AssertionError(f"no stub of {model}")


def engines_of(server) -> list[int]:
    return [server.status(stage)["pid"] for stage in STAGES]


def ends_of_streams(server, stub: int) -> list[str]:
    """Kill a stub while two streams run: the codes with which these end, within two seconds."""

    async def run():
        async with Running(server.url) as running:
            tasks = running.start(ENDLESS, ENDLESS)
            await until(lambda: server.status("code2wav")["open"] == 2)
            os.kill(stub, signal.SIGKILL)
            killed = time.monotonic()
            codes = [(await code_of(task, 5)).code for task in tasks]
            assert time.monotonic() - killed < 2
            return codes

    return asyncio.run(run())


def gone(processes: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in processes)


def test_a_killed_stub_of_the_answering_model_ends_the_server(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        engines = engines_of(server)
        assert ends_of_streams(server, stub_of(server, "qwen3_omni")) == ["disconnected"] * 2
        server.process.wait(10)
        assert "a stub of qwen3_omni_0_0 died" in server.log.read_text(errors="replace")
        wait_until(lambda: gone(engines), 5, "the engines have ended")


def test_a_killed_stub_ends_its_streams_and_then_the_server(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        engines = engines_of(server)
        assert ends_of_streams(server, stub_of(server, "code2wav")) == ["stage_failed"] * 2
        server.process.wait(30)
        assert "a stub of code2wav died" in server.log.read_text(errors="replace")
    assert gone(engines)
