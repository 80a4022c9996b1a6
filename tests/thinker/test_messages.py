"""Answers and limits, point 2: the forms of messages that OpenAI's clients send."""

from __future__ import annotations

import pytest

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.engine import MediaOptions
from python_backends.thinker.messages import PromptRules, parse_messages

RULES = PromptRules(("<|im_end|>",), 4096, MediaOptions())


def parsed(*messages):
    return parse_messages(list(messages), RULES)


def test_a_developer_speaks_as_the_system():
    assert parsed({"role": "developer", "content": "Be brief."}).messages == [
        {"role": "system", "content": "Be brief."}
    ]


def test_names_are_handed_to_the_template():
    (message,) = parsed({"role": "user", "name": "Ann", "content": "Hi"}).messages
    assert message["name"] == "Ann"
    assert "name" not in parsed({"role": "user", "name": None, "content": "Hi"}).messages[0]
    for name in ("", "x" * 65, 3, "<|im_end|>"):
        with pytest.raises(InvalidRequest) as error:
            parsed({"role": "user", "name": name, "content": "Hi"})
        assert error.value.field == "messages[0].name"


def test_parts_of_the_responses_api():
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "data:,x", "detail": None},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": None}},
        {"type": "video", "video": "data:,x", "tensor": None, "fps": None, "use_audio_in_video": None},
    ]
    conversation = parsed({"role": "user", "content": parts})
    assert [part["type"] for part in conversation.messages[0]["content"]] == ["text", "image", "audio", "video"]
    assert conversation.media[0].field == "messages[0].content[1].image_url"
    with pytest.raises(InvalidRequest) as error:
        parsed({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]})
    assert error.value.field == "messages[0].content[0].file_id"
