"""`async_chunk: false` in the deploy YAML of a real tritonserver, around played engines."""

from __future__ import annotations

import asyncio

import pytest

from client.streaming import AudioChunk, OmniClient, TextDelta
from tests.e2e.test_profiles_rules import played_server, request

STAGES = [
    {"stage_id": 0, "engine_options": {"step_ms": 5}},
    {"stage_id": 1, "engine_options": {"step_ms": 5}},
    {"stage_id": 2, "engine_options": {"step_ms": 0}},
]


@pytest.fixture(scope="module")
def answer(tiny_checkpoint, tmp_path_factory):
    profile = {"base_config": "cpu", "async_chunk": False, "stages": STAGES}
    with played_server(tiny_checkpoint, tmp_path_factory.mktemp("full_payload"), profile) as server:

        async def run():
            async with OmniClient(server.url) as client:
                return await client.ask(request(30, 40))

        return asyncio.run(run())


def test_every_stage_waits_for_the_whole_of_the_one_before(answer):
    timings = answer.summary["timings_ms"]
    assert timings["first_audio"] > timings["talker_done"] > timings["thinker_done"] > timings["first_text"]


def test_text_streams_and_all_speech_comes_after_it(answer):
    kinds = [type(event) for event in answer.events]
    assert kinds.count(TextDelta) > 1 and kinds.count(AudioChunk) == 1
    assert kinds.index(AudioChunk) > max(at for at, kind in enumerate(kinds) if kind is TextDelta)
