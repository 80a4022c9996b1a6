"""Files as parts of a message."""

from __future__ import annotations

import base64

import pytest

from client.chat import chat
from client.media import file_part


@pytest.fixture
def files(tmp_path):
    for name in ("a.wav", "b.png", "c.mp4"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def test_a_file_becomes_a_part_in_openai_form(files):
    encoded = {name: base64.b64encode(name.encode()).decode() for name in ("a.wav", "b.png", "c.mp4")}
    sound = {"data": encoded["a.wav"], "format": "wav"}
    assert file_part("audio", files / "a.wav") == {"type": "input_audio", "input_audio": sound}
    picture = {"url": "data:image/png;base64," + encoded["b.png"]}
    assert file_part("image", files / "b.png") == {"type": "image_url", "image_url": picture}
    film = {"url": "data:video/mp4;base64," + encoded["c.mp4"], "fps": 2}
    assert file_part("video", files / "c.mp4", fps=2) == {"type": "video_url", "video_url": film}


def test_a_request_holds_what_was_given():
    """`chat`: text is a user's message; what is not given is left to the server."""
    assert chat("Hi") == {"messages": [{"role": "user", "content": "Hi"}]}
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    given = {
        "modalities": ["text"],
        "speaker": "Ethan",
        "seed": 0,
        "audio_format": "int16",
        "sampling": {"thinker": {"temperature": 0}},
        "timeouts": {"total_s": 5},
    }
    assert chat(messages, **given) == {"messages": messages, **given}
