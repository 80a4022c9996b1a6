"""Bad input ends its own stream with an error that names the field; the server serves on and leaks nothing."""

from __future__ import annotations

import asyncio

import pytest

from client.streaming import OmniClient, OmniClientError
from tests.e2e.prompts import PROMPTS

GOOD = PROMPTS["few words"].request()
USER = GOOD["messages"]

BAD = {
    "not json": ("{", "request"),
    "not an object": ("[]", "request"),
    "invalid utf-8 escape": ('{"messages": "\\ud800"}', "messages"),
    "half a surrogate pair": ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    "half a pair as a name": (GOOD | {"\udfff": 1}, "udfff"),
    "half a pair as a voice": (GOOD | {"speaker": "\ud800"}, "speaker"),
    "integer beyond 64 bits": ({"messages": [{"role": "user", "content": "Hi", "n": 10**40}]}, "messages[0].n"),
    "100000 messages": ({"messages": [{"role": "user", "content": ""}] * 100_000}, "messages"),
    "no messages": ({}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "unknown field": (GOOD | {"colour": "red"}, "colour"),
    "unknown modality": (GOOD | {"modalities": ["video"]}, "modalities"),
    "unknown speaker": (GOOD | {"speaker": "nobody"}, "speaker"),
    "wrong role": ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role"),
    "wrong content": ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    "wrong part": ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0]"),
    "negative limit": (GOOD | {"sampling": {"thinker": {"max_tokens": -1}}}, "sampling.thinker.max_tokens"),
    "limit beyond the context": (GOOD | {"sampling": {"thinker": {"max_tokens": 900_000}}}, "max_tokens"),
    "too many frames": (GOOD | {"sampling": {"talker": {"max_tokens": 4097}}}, "sampling.talker.max_tokens"),
    "wrong type": (GOOD | {"sampling": {"talker": {"temperature": "hot"}}}, "sampling.talker.temperature"),
    "prompt beyond the context": ({"messages": [{"role": "user", "content": "word " * 70_000}]}, "messages"),
}


async def refusal(client: OmniClient, request) -> OmniClientError:
    with pytest.raises(OmniClientError) as caught:
        await asyncio.wait_for(client.ask(request), 60)
    return caught.value


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_the_field_and_the_next_request_is_served(server, name):
    request, field = BAD[name]

    async def run():
        async with OmniClient(server.url) as client:
            error = await refusal(client, request)
            return error, await client.ask(GOOD)

    error, answer = asyncio.run(run())
    assert error.code == "invalid_request", error
    assert field in str(error)
    assert answer.summary["finish_reason"] == "stop"


def test_bad_input_harms_no_stream_beside_it(server):
    async def run():
        async with OmniClient(server.url) as client:
            alone = await client.ask(GOOD)
            good = [client.ask(GOOD) for _ in range(4)]
            bad = [refusal(client, request) for request, _ in BAD.values()]
            together = await asyncio.gather(*good, *bad)
            return alone, together[:4]

    alone, beside = asyncio.run(run())
    for answer in beside:
        assert answer.text == alone.text and answer.audio.size == alone.audio.size


def test_nothing_leaks_after_many_bad_and_good_requests(server):
    async def run(rounds: int):
        async with OmniClient(server.url) as client:
            for _ in range(rounds):
                bad = [refusal(client, request) for request, _ in BAD.values()]
                await asyncio.gather(*bad, *(client.ask(GOOD) for _ in range(4)))

    asyncio.run(run(1))
    server.wait_idle()
    before = server.resources()
    asyncio.run(run(3))
    server.wait_idle()
    after = server.resources()
    grown = {name: (before[name], after[name]) for name in before if after[name] > before[name]}
    assert not grown, f"grew: {grown}"
