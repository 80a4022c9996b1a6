"""The Thinking variant: a checkpoint without Talker and Code2Wav serves text under the profile `thinking`."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import tritonclient.grpc as triton

from client.streaming import OmniClient, OmniClientError
from tests.e2e.played import key_of
from tests.e2e.prompts import PROMPTS
from tests.server import Server

PROFILE = "base_config: thinking\nstages:\n  - stage_id: 0\n    engine_options: {media: null}\n"


@pytest.fixture(scope="module")
def thinking_checkpoint(tiny_checkpoint, tmp_path_factory):
    """The tiny checkpoint as the Thinking variant is published: its config names no Talker and no Code2Wav."""
    out = tmp_path_factory.mktemp("thinking") / "checkpoint"
    out.mkdir()
    for path in tiny_checkpoint.iterdir():
        (out / path.name).symlink_to(path)
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    del config["talker_config"], config["code2wav_config"]
    (out / "config.json").unlink()
    (out / "config.json").write_text(json.dumps(config | {"enable_audio_output": False}))
    return out


@pytest.fixture(scope="module")
def thinking(thinking_checkpoint, tmp_path_factory):
    directory = tmp_path_factory.mktemp("thinking_server")
    (directory / "deploy.yaml").write_text(PROFILE)
    with Server(thinking_checkpoint, directory / "server.log", directory / "deploy.yaml") as server:
        yield server


def test_it_answers_in_text(thinking, oracle):
    prompt = PROMPTS["greeting"]
    want = oracle.answer(prompt.messages, max_tokens=prompt.max_tokens, max_frames=prompt.max_frames)

    async def run():
        async with OmniClient(thinking.url) as client:
            return await client.ask(prompt.request())

    answer = asyncio.run(run())
    assert answer.text == want.text and not answer.audio.size
    assert list(answer.summary["stages"]) == ["thinker"]
    assert thinking.status("thinker")["open"] == 0


def test_asking_for_audio_is_refused(thinking):
    async def run():
        async with OmniClient(thinking.url) as client:
            with pytest.raises(OmniClientError) as caught:
                await client.ask(PROMPTS["greeting"].request(modalities=["text", "audio"]))
            return caught.value

    error = asyncio.run(run())
    assert error.code == "invalid_request"
    assert str(error) == "modalities: this server answers in text only, not in audio"


def test_the_stage_itself_refuses_a_talker(thinking):
    """Whatever profile stands before it: the checkpoint has nothing to speak with."""
    sampling = {"temperature": 0.0, "max_tokens": 5}
    payload = {"stream_id": "s", "reply": "ipc:///nowhere", "sink": "ipc:///nowhere", "seed": 1}
    payload |= {"messages": PROMPTS["greeting"].messages, "sampling": sampling}
    call = {"op": "open_all", "key": key_of(thinking), "streams": [payload]}
    tensor = triton.InferInput("request", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([json.dumps(call).encode()], dtype=np.object_))
    reply = json.loads(thinking.control.infer("thinker", [tensor]).as_numpy("reply")[0])
    (answer,) = reply["answers"]
    assert "modalities: this checkpoint answers in text only" in answer["error"]["message"]
    assert thinking.status("thinker")["open"] == 0
