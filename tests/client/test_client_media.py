"""Files as parts of a message, on the command line and off."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from client import cli
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


def test_the_command_line_keeps_the_order_of_its_files(files, monkeypatch):
    words = ["cli", "What?", "--image", files / "b.png", "--audio", files / "a.wav", "--video", files / "c.mp4"]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--image", str(files / "b.png"), "--use-audio-in-video"])
    (message,) = cli._request(cli._arguments())["messages"]
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["image_url", "input_audio", "video_url", "image_url", "text"]
    assert message["content"][2]["video_url"]["use_audio_in_video"] is True


def test_without_files_the_content_is_plain_text(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cli", "Hi"])
    assert cli._request(cli._arguments())["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_file_that_is_not_there_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "client.cli", "--image", str(tmp_path / "no.png")], capture_output=True, text=True
    )
    assert done.returncode == 2 and "no.png: No such file" in done.stderr
