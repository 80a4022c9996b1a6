"""What the server says equals what transformers says: ids, codes in all groups, samples."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from client.streaming import OmniClient
from python_backends.config.stage import ChunkSchedule
from python_backends.orchestrator.request import parse_request
from tests.cpu import products_round_alike
from tests.e2e.played import CollectingResponder, ids_and_codes, orchestrator_with
from tests.e2e.prompts import PROMPTS

SCHEDULES = {
    "one frame": ChunkSchedule(1, 1),
    "4 then 25": ChunkSchedule(4, 25),
    "doubling": ChunkSchedule(1, 25, doubling=True),
    "whole": ChunkSchedule(4, 0),
}


@pytest.fixture(scope="module")
def expected(oracle):
    """What transformers answers to each prompt."""
    return {
        name: oracle.answer(p.messages, max_tokens=p.max_tokens, max_frames=p.max_frames) for name, p in PROMPTS.items()
    }


def assert_same_wave(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_the_prompts_are_what_they_claim(expected):
    """The suite is worth nothing on degenerate answers."""
    assert len(expected["empty"].ids) == 0 and expected["empty"].stopped
    assert len(expected["one token"].ids) == 1 and expected["one token"].stopped
    assert not expected["cut"].stopped and len(expected["cut"].ids) == PROMPTS["cut"].max_tokens
    assert any(len(answer.ids) > 30 and answer.stopped for answer in expected.values())
    spoken = [answer for answer in expected.values() if answer.ids]
    assert len({tuple(answer.ids) for answer in spoken}) == len(spoken)
    assert len({answer.codes.tobytes() for answer in spoken}) == len(spoken)
    assert any(len(a.codes) < PROMPTS[name].max_frames for name, a in expected.items() if a.ids), "no Talker stopped"
    assert any(len(np.unique(answer.codes[:, group])) > 5 for answer in spoken for group in range(16))
    assert all(1e-4 < np.abs(answer.wave).mean() < 0.9 for answer in spoken)


@pytest.mark.parametrize("name", PROMPTS)
def test_ids_and_codes_alone(server, expected, tmp_path, name):
    request = parse_request(json.dumps(PROMPTS[name].request()))
    ids, codes = ids_and_codes(server, tmp_path, request)
    assert ids == expected[name].ids
    np.testing.assert_array_equal(codes, expected[name].codes)


@pytest.mark.parametrize("name", PROMPTS)
def test_text_and_samples_alone_over_grpc(server, expected, name):
    async def ask():
        async with OmniClient(server.url) as client:
            return await client.ask(PROMPTS[name].request())

    answer = asyncio.run(ask())
    assert answer.text == expected[name].text
    assert_same_wave(answer.audio, expected[name].wave)
    usage = answer.summary["stages"]
    assert usage["thinker"]["usage"]["prompt_tokens"] == len(expected[name].prompt_ids)
    assert usage["thinker"]["usage"]["completion_tokens"] == len(expected[name].ids)
    assert usage["talker"]["usage"]["frames"] == len(expected[name].codes)
    reasons = {stage: facts["finish_reason"] for stage, facts in usage.items()}
    assert reasons["thinker"] == ("stop" if expected[name].stopped else "length")
    cut = len(expected[name].codes) == PROMPTS[name].max_frames
    assert reasons["talker"] == ("length" if cut else "stop")
    assert answer.summary["finish_reason"] == ("length" if "length" in reasons.values() else "stop")


def test_text_and_samples_all_at_once_over_grpc(server, expected):
    async def ask():
        async with OmniClient(server.url) as client:
            return await asyncio.gather(*(client.ask(prompt.request()) for prompt in PROMPTS.values()))

    for name, answer in zip(PROMPTS, asyncio.run(ask()), strict=True):
        assert answer.text == expected[name].text
        assert_same_wave(answer.audio, expected[name].wave)


@pytest.fixture(scope="module")
def waves():
    """The samples of each prompt as they came first."""
    return {}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_samples_do_not_depend_on_chunk_sizes(server, expected, waves, tmp_path, schedule):
    orchestrator = orchestrator_with(server, tmp_path, SCHEDULES[schedule])
    try:
        answers = {name: CollectingResponder() for name in PROMPTS}
        for name, responder in answers.items():
            orchestrator.submit(json.dumps(PROMPTS[name].request()), responder)
        for name, responder in answers.items():
            responder.wait()
            assert "".join(responder.deltas) == expected[name].text
            assert_same_wave(responder.wave, expected[name].wave)
            if products_round_alike():
                assert np.array_equal(responder.wave, waves.setdefault(name, responder.wave))
    finally:
        orchestrator.close()
