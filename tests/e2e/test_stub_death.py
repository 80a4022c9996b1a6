"""A stub that is killed: its streams are told, and the server ends instead of failing every request from then on."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

from tritonclient.utils import InferenceServerException

from client.streaming import OmniClientError
from tests.e2e.test_profiles_rules import (
    ENDLESS,
    PROFILE,
    SHORT,
    Running,
    code_of,
    environment_of,
    parent_of,
    played_server,
    until,
)
from tests.server import PATIENT_S, STAGES, wait_until

SINGLE = PROFILE | {"stages": [{**stage, "replicas": 1} for stage in PROFILE["stages"]]}
STREAMS = 4  # as many as PROFILE takes


def stub_of(server, model: str) -> int:
    """Process id of a model's stub, a child of the server that the script started."""
    triton = parent_of(parent_of(parent_of(server.status("thinker")["pid"])))
    for path in Path(f"/proc/{triton}/task/").glob("*/children"):
        for pid in path.read_text().split():
            if f"/{model}/1/model.py" in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
    raise AssertionError(f"no stub of {model}")


def engines_of(server) -> list[int]:
    return [server.status(stage)["pid"] for stage in STAGES]


def gone(processes: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in processes)


def ends_of_streams(server, breaks, more=()) -> list[OmniClientError]:
    """Errors of STREAMS endless streams during which `breaks()` is called; `more`: coroutines to await after that."""

    async def run():
        async with Running(server.url) as running:
            tasks = running.start(*[ENDLESS] * STREAMS)
            await until(lambda: server.status("thinker")["open"] == STREAMS)  # the last to be opened
            breaks()
            for one in more:
                await one(running)
            return [await code_of(task) for task in tasks]

    return asyncio.run(run())


async def is_not_ready(running: Running) -> None:
    """Operating, ready turns false before the model goes: at once, while Triton still answers."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                if not await running.client._client.is_server_ready():
                    return
            except InferenceServerException:  # it answers no more
                return
            await asyncio.sleep(0.02)


async def new_requests_are_told(running: Running) -> None:
    """Operating, new requests after a stub's death: `shutting_down`, until there is no server."""
    assert (await code_of(running.start(SHORT)[0])).code in ("shutting_down", "disconnected")


def ends_by_itself(server, engines: list[int], words: str) -> None:
    """Operating, every end that nobody asked for has a code that is not 0; and nothing is left."""
    assert server.process.wait(PATIENT_S) != 0
    assert words in server.log.read_text(errors="replace")
    wait_until(lambda: gone(engines), PATIENT_S, "the engines have ended")


def test_a_killed_stub_of_the_answering_model_ends_the_server(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        engines, stub = engines_of(server), stub_of(server, "qwen3_omni")
        errors = ends_of_streams(server, lambda: os.kill(stub, signal.SIGKILL))
        assert [error.code for error in errors] == ["disconnected"] * STREAMS
        ends_by_itself(server, engines, "a stub of qwen3_omni_0_0 died")


def test_a_killed_stub_ends_its_streams_and_then_the_server(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        engines, stub = engines_of(server), stub_of(server, "code2wav")
        more = (is_not_ready, new_requests_are_told)
        errors = ends_of_streams(server, lambda: os.kill(stub, signal.SIGKILL), more)
        assert [error.code for error in errors] == ["stage_failed"] * STREAMS
        ends_by_itself(server, engines, "a stub of code2wav died")


def test_a_stub_and_its_engine_that_die_together_end_the_server(tiny_checkpoint, tmp_path):
    """Nobody is left to tell of that stage: the streams on it end with the server's drain time."""
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        engines, stub = engines_of(server), stub_of(server, "talker")

        def breaks():
            os.kill(stub, signal.SIGSTOP)  # else it may see its engine die first
            os.kill(engines[1], signal.SIGKILL)
            os.kill(stub, signal.SIGKILL)

        errors = ends_of_streams(server, breaks)
        assert {error.code for error in errors} <= {"stage_failed", "shutting_down"}, [str(e) for e in errors]
        ends_by_itself(server, engines, "a stub of talker_0_0 died")


def test_stubs_that_all_die_at_once_end_the_server(tiny_checkpoint, tmp_path):
    """Operating, a dead stage stub: no stub is left to end the server, and the engines' fork servers do."""
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        engines = engines_of(server)
        stubs = [stub_of(server, model) for model in ("qwen3_omni", *STAGES)]
        errors = ends_of_streams(server, lambda: [os.kill(stub, signal.SIGKILL) for stub in stubs])
        assert [error.code for error in errors] == ["disconnected"] * STREAMS
        ends_by_itself(server, engines, "every stub has died")


def test_a_runtime_directory_that_is_removed_ends_the_server(tiny_checkpoint, tmp_path):
    """Operating, runtime directory removed under a running server: what runs goes on for the drain time, and the server
    ends for its supervisor, not before each stream has been told why."""
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        engines = engines_of(server)
        runtime_dir = environment_of(engines[0])["OMNI_RUNTIME_DIR"]
        errors = ends_of_streams(server, lambda: shutil.rmtree(runtime_dir))
        assert [error.code for error in errors] == ["shutting_down"] * STREAMS
        ends_by_itself(server, engines, "the runtime directory was removed: the server ends")
