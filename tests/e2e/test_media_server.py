"""Audio, images and video through a real tritonserver, as files and as raw tensors: what transformers says."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import numpy as np
import pytest
import tritonclient.grpc as triton

from client.media import RawMedia
from client.streaming import OmniClient, OmniClientError
from python_backends.orchestrator.request import parse_request
from tests.e2e.media_cases import KINDS, MAX_FRAMES, MAX_TOKENS, as_files, as_tensors
from tests.e2e.media_oracle import MediaOracle
from tests.e2e.played import ids_and_codes
from tests.server import Server
from tests.thinker import samples
from tests.thinker.test_bad_media import WAV, long_silence, png_bomb
from tests.thinker.test_media import PICTURE, SOUND, ask, case

FORMS = {"files": as_files, "tensors": as_tensors}
# One form each for the codes: the other's samples are compared below.
CODES_FROM = dict.fromkeys(KINDS, "files") | dict.fromkeys(("two audios", "video", "mixed", "turns"), "tensors")
BAD_FILE_S = 30.0


@pytest.fixture(scope="module")
def media_server(tiny_checkpoint, tmp_path_factory):
    with Server(tiny_checkpoint, tmp_path_factory.mktemp("media") / "server.log", "cpu") as server:
        yield server


@pytest.fixture(scope="module")
def expected(tiny_checkpoint):
    oracle = MediaOracle(tiny_checkpoint)
    return {
        kind: oracle.answer(as_files(kind).messages, as_files(kind).given, MAX_TOKENS, MAX_FRAMES) for kind in KINDS
    }


def test_the_prompts_are_what_they_claim(expected):
    assert len({tuple(answer.ids) for answer in expected.values()}) == len(KINDS)
    assert len({answer.codes.tobytes() for answer in expected.values()}) == len(KINDS)
    assert all(len(answer.codes) == MAX_FRAMES and answer.wave.size for answer in expected.values())


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_codes(media_server, expected, tmp_path, kind):
    request = FORMS[CODES_FROM[kind]](kind)
    body = parse_request(json.dumps(request.body()))
    ids, codes = ids_and_codes(media_server, tmp_path, body, request.media.inputs())
    assert ids == expected[kind].ids
    np.testing.assert_array_equal(codes, expected[kind].codes)


def test_sixteen_at_once_in_both_forms(media_server, expected):
    asked = [(kind, form(kind)) for form in FORMS.values() for kind in KINDS]

    async def run():
        async with OmniClient(media_server.url) as client:
            return await asyncio.gather(*(client.ask(request.body(), request.media) for _, request in asked))

    for (kind, _), answer in zip(asked, asyncio.run(run()), strict=True):
        assert answer.text == expected[kind].text
        assert answer.audio.shape == expected[kind].wave.shape
        np.testing.assert_allclose(answer.audio, expected[kind].wave, rtol=0, atol=1e-5)
        usage = answer.summary["stages"]["thinker"]["usage"]
        assert usage["prompt_tokens"] == len(expected[kind].prompt_ids)


def test_a_silent_film_to_be_heard_is_noted_in_the_summary(media_server):
    messages, _ = case("silent film to be heard")
    body = as_files("video").body(modalities=["text"]) | {"messages": messages}

    async def run():
        async with OmniClient(media_server.url) as client:
            return await client.ask(body)

    notes = asyncio.run(run()).summary["stages"]["thinker"]["notes"]
    assert notes == ["messages[0].content[0].video_url.url: has no sound track; it was shown as a silent film"]


# ---- what is refused -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Inputs:
    """Media inputs as a client with mistakes of its own sends them."""

    arrays: dict[str, np.ndarray]

    def inputs(self) -> list[triton.InferInput]:
        kinds = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "uint8": "UINT8"}
        tensors = []
        for name, array in self.arrays.items():
            tensors.append(triton.InferInput(name, list(array.shape), kinds[array.dtype.name]))
            tensors[-1].set_data_from_numpy(array)
        return tensors


def url_part(kind: str, data: bytes) -> dict:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": samples.data_url(data)}}


IMAGE_0 = {"type": "image", "tensor": 0}
PIXELS = {"IMAGE": PICTURE.reshape(-1), "IMAGE_SHAPES": np.array([PICTURE.shape])}
THIN = RawMedia(image=[PICTURE[:1, :1]])
REFUSED = {
    "truncated": (url_part("image", samples.png(PICTURE)[:500]), None, "messages[0].content[0].image_url.url"),
    "empty": (url_part("audio", b""), None, "messages[0].content[0].audio_url.url: is empty"),
    "ten hours": (url_part("audio", long_silence(10)), None, "longer than 1200 s"),
    "pixel bomb": (url_part("image", png_bomb(30000)), None, "more than 50000000"),
    "text as png": (url_part("image", b"hello, I am a picture"), None, "not an image"),
    "cut wave": (url_part("audio", WAV[:20]), None, "not audio"),
    "wrong base64": ({"type": "audio", "audio": "data:;base64,!!!!"}, None, "not base64"),
    "local file": ({"type": "image", "image": "file:///etc/passwd"}, None, "local files are not allowed"),
    "named by nobody": (None, RawMedia(image=[PICTURE]), "IMAGE[0]: is named by no message"),
    "out of range": ({"type": "image", "tensor": 1}, RawMedia(image=[PICTURE]), "messages[0].content[0].tensor"),
    "no tensors": ({"type": "audio", "tensor": 0}, None, "no audio tensor 0, 0 were sent"),
    "too thin": (IMAGE_0, THIN, "messages[0].content[0].tensor: is too thin"),
    "wrong rate": ({"type": "audio", "tensor": 0}, RawMedia(audio=[(SOUND, 7)]), "rate from 1000 to 384000 Hz, got 7"),
    "too many frames": (
        {"type": "video", "tensor": 0},
        RawMedia(video=[np.zeros((300, 8, 8, 3), np.uint8)]),
        "asks for 300 frames, more than 256",
    ),
    "pixels missing": (IMAGE_0, Inputs({**PIXELS, "IMAGE": PIXELS["IMAGE"][:-1]}), "IMAGE_SHAPES[0]: reaches beyond"),
    "pixels left": (IMAGE_0, Inputs({**PIXELS, "IMAGE": np.zeros(99999, np.uint8)}), "IMAGE: has 99999 elements"),
    "no shapes": (IMAGE_0, Inputs({"IMAGE": PIXELS["IMAGE"]}), "IMAGE_SHAPES: is required beside IMAGE"),
    # Triton itself refuses these.
    "wrong type": (IMAGE_0, Inputs({**PIXELS, "IMAGE": np.zeros(9, np.float32)}), "IMAGE"),
    "wrong rank": (IMAGE_0, Inputs({**PIXELS, "IMAGE_SHAPES": np.array([64, 96, 3])}), "IMAGE_SHAPES"),
}


def test_bad_media_are_refused_at_once_and_harm_nobody(media_server, expected):
    good = as_tensors("turns")

    async def refuse(client: OmniClient, name: str) -> str:
        part, media, _ = REFUSED[name]
        body = good.body() | {"messages": ask(*([part] if part else []), "What is this?")}
        started = time.monotonic()
        with pytest.raises(OmniClientError) as caught:
            await asyncio.wait_for(client.ask(body, media), 60)
        assert time.monotonic() - started < BAD_FILE_S, name
        assert caught.value.code == ("server" if name in ("wrong type", "wrong rank") else "invalid_request"), name
        return str(caught.value)

    async def run():
        async with OmniClient(media_server.url) as client:
            said = {name: await refuse(client, name) for name in REFUSED}
            return said, await client.ask(good.body(), good.media)

    said, answer = asyncio.run(run())
    wrong = {name: said[name] for name, (_, _, words) in REFUSED.items() if words not in said[name]}
    assert not wrong
    private = {name: text for name, text in said.items() if "0x" in text or "object" in text}
    assert not private
    assert answer.text == expected["turns"].text
