"""The kinds of requests, their media as files in the messages and as raw tensors beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client.media import RawMedia
from tests.thinker.test_media import ask, case

MAX_TOKENS, MAX_FRAMES = 10, 12
_HEARD = ("audio in video", "heard film beside sounds")
KINDS = ("text", "audio", "two audios", "image", "video", "mixed", *_HEARD, "turns")


@dataclass(frozen=True)
class MediaRequest:
    """`messages` and the raw tensors that they name; `given` what `transformers`' processor gets for them."""

    messages: list[dict]
    media: RawMedia
    given: dict

    def body(self, **fields) -> dict:
        """The request's JSON object: greedy, short."""
        sampling = {
            "thinker": {"temperature": 0.0, "max_tokens": MAX_TOKENS},
            "talker": {"temperature": 0.0, "max_tokens": MAX_FRAMES},
        }
        return {"messages": self.messages, "sampling": sampling, **fields}


def as_files(kind: str) -> MediaRequest:
    """Base64 in OpenAI's form."""
    messages, given = (ask("What is the capital of France?"), {}) if kind == "text" else case(kind)
    return MediaRequest(messages, RawMedia(), given)


def as_tensors(kind: str) -> MediaRequest:
    """The same media as raw tensors, but for a film that is heard: raw frames have no sound."""
    files = as_files(kind)
    if files.given.get("use_audio_in_video"):
        return files
    given = files.given
    arrays = {
        "audio": [(samples, 16000) for samples in given.get("audio", [])],
        "image": [np.asarray(image) for image in given.get("images", [])],
        "video": given.get("videos", []),
    }
    used = dict.fromkeys(arrays, 0)

    def raw(part: dict) -> dict:
        name = part["type"].removesuffix("_url")
        if name == "text":
            return part
        used[name] += 1
        rate = {"fps": given["fps"]} if name == "video" else {}
        return {"type": name, "tensor": used[name] - 1, **rate}

    messages = [
        message | {"content": [raw(part) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in files.messages
    ]
    return MediaRequest(messages, RawMedia(**arrays), given)
