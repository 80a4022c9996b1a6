"""How answers stream: order of text and audio, many at once, seeds, formats."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from client.streaming import AudioChunk, OmniClient, Summary, TextDelta
from tests.e2e.prompts import PROMPTS

LONG = PROMPTS["long"]


def ask_all(server, requests: list[dict]) -> list:
    async def run():
        async with OmniClient(server.url) as client:
            return await asyncio.gather(*(client.ask(request) for request in requests))

    return asyncio.run(run())


def test_audio_comes_before_the_last_text_of_a_long_answer(server):
    request = LONG.request()
    # Far longer than two chunks of audio take: how fast the Thinker is beside the Talker differs between machines.
    request["sampling"]["thinker"] |= {"ignore_eos": True, "max_tokens": 1500}
    request["sampling"]["talker"] |= {"max_tokens": 80}
    (answer,) = ask_all(server, [request])
    kinds = [type(event) for event in answer.events]
    assert kinds[-1] is Summary and kinds.count(Summary) == 1
    last_text = len(kinds) - 1 - kinds[::-1].index(TextDelta)
    first_audio = kinds.index(AudioChunk)
    assert kinds[0] is TextDelta
    assert first_audio < last_text, "the speech waited for the whole text"
    assert any(kind is AudioChunk for kind in kinds[first_audio + 1 : last_text]), "they interleave"


def test_the_first_chunk_has_four_frames(server):
    (answer,) = ask_all(server, [LONG.request()])
    sizes = [event.samples.size for event in answer.events if isinstance(event, AudioChunk)]
    assert sizes[0] <= 4 * 1920 and max(sizes) <= 25 * 1920


def test_modalities(server):
    text, audio, both = ask_all(server, [LONG.request(modalities=m) for m in (["text"], ["audio"], ["audio", "text"])])
    assert text.text == both.text and text.audio.size == 0 and set(text.summary["stages"]) == {"thinker"}
    assert audio.text == "" and both.text
    np.testing.assert_allclose(audio.audio, both.audio, atol=1e-5)


def test_int16_is_the_rounded_float(server):
    as_float, as_int = ask_all(server, [LONG.request(), LONG.request(audio_format="int16")])
    assert as_int.audio.dtype == np.int16
    np.testing.assert_allclose(as_int.audio / 32767.0, as_float.audio, atol=1.01 / 32767)


def test_a_seed_repeats_a_sampled_answer_and_another_changes_it(server):
    def sampled(seed):
        request = LONG.request(seed=seed)
        request["sampling"] = {"thinker": {"temperature": 1.0, "max_tokens": 40}, "talker": {"max_tokens": 60}}
        return request

    first, again, other = ask_all(server, [sampled(1), sampled(1), sampled(2)])
    assert first.text == again.text and first.text != other.text
    np.testing.assert_allclose(first.audio, again.audio, atol=1e-5)
    assert first.audio.size != other.audio.size or not np.allclose(first.audio, other.audio, atol=1e-2)


def test_a_drawn_seed_is_reported_and_repeats_the_answer(server):
    request = LONG.request()
    request["sampling"] = {"thinker": {"temperature": 1.0, "max_tokens": 30}, "talker": {"max_tokens": 40}}
    (first,) = ask_all(server, [request])
    (again,) = ask_all(server, [request | {"seed": first.summary["seed"]}])
    assert first.text == again.text
    np.testing.assert_allclose(first.audio, again.audio, atol=1e-5)


def test_sixteen_at_once_give_what_they_give_alone(server):
    requests = [prompt.request() for prompt in PROMPTS.values()] * 2
    together = ask_all(server, requests)
    for request, answer in zip(requests[: len(PROMPTS)], together, strict=False):
        (alone,) = ask_all(server, [request])
        assert answer.text == alone.text
        np.testing.assert_allclose(answer.audio, alone.audio, atol=1e-5)
    for first, second in zip(together, together[len(PROMPTS) :], strict=False):
        assert first.text == second.text
        np.testing.assert_allclose(first.audio, second.audio, atol=1e-5)


def test_sixty_four_at_once_all_end(server):
    requests = []
    for number in range(64):
        request = PROMPTS["greeting"].request(seed=number)
        request["sampling"] = {"thinker": {"max_tokens": 20, "temperature": 1.0}, "talker": {"max_tokens": 24}}
        requests.append(request)
    started = time.monotonic()
    answers = ask_all(server, requests)
    assert all(answer.summary["stages"]["code2wav"]["usage"]["samples"] == answer.audio.size for answer in answers)
    assert any(answer.audio.size for answer in answers)
    print(f"64 streams in {time.monotonic() - started:.1f} s")
