"""Clients that go away and engines that die: everything is freed, everybody is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from client.streaming import AudioChunk, OmniClient, OmniClientError, TextDelta
from tests.e2e.prompts import PROMPTS
from tests.server import PATIENT_S, RESTART_S, ROOT, SOONER_S, STAGES, Server, wait_until

NEVER_ENDING = PROMPTS["long"].request()
NEVER_ENDING["sampling"] = {
    "thinker": {"ignore_eos": True, "max_tokens": 1500},
    "talker": {"ignore_eos": True, "max_tokens": 1500},
}
SHORT_TEXT_LONG_SPEECH = PROMPTS["long"].request()
SHORT_TEXT_LONG_SPEECH["sampling"] = {
    "thinker": {"max_tokens": 4},
    "talker": {"ignore_eos": True, "max_tokens": 1500},
}


def in_thinker(event) -> bool:
    return isinstance(event, TextDelta)


def in_code2wav(event) -> bool:
    return isinstance(event, AudioChunk)


async def read_until(client: OmniClient, request: dict, reached) -> None:
    """Read a stream up to an event, then leave it."""
    stream = client.stream(request)
    async for event in stream:
        if reached(event):
            break
    await stream.aclose()


@pytest.mark.parametrize(
    ("request_body", "reached"),
    [(NEVER_ENDING, in_thinker), (NEVER_ENDING, in_code2wav), (SHORT_TEXT_LONG_SPEECH, in_code2wav)],
    ids=["thinker", "code2wav", "talker after the text"],
)
def test_a_cancelled_request_is_freed_by_all_stages(server, request_body, reached):
    async def run():
        async with OmniClient(server.url) as client:
            await asyncio.wait_for(read_until(client, request_body, reached), 60)

    asyncio.run(run())
    server.wait_idle()


def test_a_client_that_is_killed_is_freed(server, tmp_path):
    command = [sys.executable, "-m", "client.run", "-q", "text", "--url", server.url, "--output-dir", str(tmp_path)]
    command += ["--thinker", "ignore_eos=true", "--thinker", "max_tokens=1500", "--talker", "ignore_eos=true"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout.read(1), "the client printed no text"
        wait_until(lambda: server.status("code2wav")["open"] == 1, PATIENT_S, "the stream is open")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    server.wait_idle()


def test_sixteen_cancels_beside_a_stream_that_goes_on(server):
    async def run():
        async with OmniClient(server.url) as client:
            alone = await client.ask(PROMPTS["greeting"].request())
            cancels = [read_until(client, NEVER_ENDING, in_thinker) for _ in range(16)]
            kept, *_ = await asyncio.gather(client.ask(PROMPTS["greeting"].request()), *cancels)
            return alone, kept

    alone, kept = asyncio.run(run())
    assert kept.text == alone.text and kept.audio.size == alone.audio.size


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_engine_fails_its_streams_and_comes_back(server, stage):
    async def run():
        async with OmniClient(server.url) as client:
            streams = [asyncio.ensure_future(client.ask(NEVER_ENDING)) for _ in range(3)]
            while server.status("code2wav")["open"] < 3:
                ended = [stream.exception() or "answered" for stream in streams if stream.done()]
                assert not ended, ended
                await asyncio.sleep(0.02)
            killed = time.monotonic()
            os.kill(server.status(stage)["pid"], signal.SIGKILL)
            results = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 60)
            return results, time.monotonic() - killed

    results, seconds = asyncio.run(run())
    assert all(isinstance(result, OmniClientError) and result.code == "stage_failed" for result in results), results
    assert seconds < SOONER_S
    others = [name for name in STAGES if name != stage]
    wait_until(lambda: all(server.status(name)["open"] == 0 for name in others), PATIENT_S, "the other stages are free")
    wait_until(lambda: _serves(server), RESTART_S, f"the server serves again after {stage} died")


def _serves(server: Server) -> bool:
    async def run():
        async with OmniClient(server.url) as client:
            return await client.ask(PROMPTS["few words"].request())

    try:
        return asyncio.run(run()).audio.size > 0
    except OmniClientError as error:
        assert error.code == "stage_failed", error
        return False
