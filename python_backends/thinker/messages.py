"""OpenAI-style messages: checked, split into what the chat template renders and the media beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from python_backends.config.errors import InvalidRequest

ROLES = ("system", "user", "assistant")
MEDIA_KINDS = ("audio", "image", "video")


@dataclass(frozen=True)
class MediaRef:
    """One audio, image or video that a message names.

    `field`: where it stands, such as `messages[0].content[1].image_url.url`. `source`: a web or data URL or a path;
    None when the content is raw tensor number `tensor` of its kind. `fps`, `num_frames`: how frames are sampled from a
    video. `use_audio`: the video's sound track is heard too.
    """

    kind: str
    field: str
    source: str | None = None
    tensor: int | None = None
    fps: float | None = None
    num_frames: int | None = None
    use_audio: bool = False


@dataclass(frozen=True)
class Conversation:
    """`messages` in the form that the checkpoint's chat template takes; `media` in the order of the prompt."""

    messages: list[dict[str, Any]]
    media: list[MediaRef] = field(default_factory=list)


def parse_messages(messages: object, control_tokens: Iterable[str]) -> Conversation:
    """Check `messages` and collect their media. Text may not hold any of `control_tokens`, the special ones.

    Raises InvalidRequest that names the field.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages", "must be a list with at least one message")
    parser = _Parser(tuple(control_tokens))
    rendered = [parser.message(message, f"messages[{at}]") for at, message in enumerate(messages)]
    return Conversation(rendered, parser.media)


class _Parser:
    def __init__(self, control_tokens: tuple[str, ...]) -> None:
        self._control_tokens = control_tokens
        self.media: list[MediaRef] = []

    def message(self, message: object, path: str) -> dict[str, Any]:
        body = _object(message, path, ("role", "content"))
        role = body.get("role")
        if role not in ROLES:
            raise InvalidRequest(f"{path}.role", f"must be one of {', '.join(ROLES)}; got {role!r}")
        content = body.get("content")
        if isinstance(content, str):
            return {"role": role, "content": self._text(content, f"{path}.content")}
        if not isinstance(content, list):
            raise InvalidRequest(f"{path}.content", "must be a string or a list of parts")
        return {"role": role, "content": [self._part(part, f"{path}.content[{at}]") for at, part in enumerate(content)]}

    def _part(self, part: object, path: str) -> dict[str, Any]:
        if not isinstance(part, dict):
            raise InvalidRequest(path, f"must be an object, got {type(part).__name__}")
        kind = part.get("type")
        reader = _PART_READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise InvalidRequest(f"{path}.type", f"must be one of {', '.join(_PART_READERS)}; got {kind!r}")
        if kind == "text":
            body = _object(part, path, ("type", "text"))
            return {"type": "text", "text": self._text(body.get("text"), f"{path}.text")}
        ref = reader(part, path)
        self.media.append(ref)
        return {"type": ref.kind}

    def _text(self, text: object, path: str) -> str:
        if not isinstance(text, str):
            raise InvalidRequest(path, f"must be a string, got {type(text).__name__}")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidRequest(path, "holds half of a surrogate pair")
        # A control token in plain text would end the turn or stand for media that are not there.
        for token in self._control_tokens:
            if token in text:
                raise InvalidRequest(path, f"may not contain the control token {token!r}")
        return text


def _url_part(kind: str) -> Callable[[dict, str], MediaRef]:
    """`{"type": "image_url", "image_url": {"url": ...}}`, or the URL itself in place of the inner object."""

    def read(part: dict, path: str) -> MediaRef:
        key = f"{kind}_url"
        body = _object(part, path, ("type", key))
        inner, at = body.get(key), f"{path}.{key}"
        if isinstance(inner, str):
            return MediaRef(kind, at, source=inner)
        allowed = {"audio": ("url",), "image": ("url", "detail"), "video": ("url", *_VIDEO_OPTIONS)}[kind]
        inner = _object(inner, at, allowed)
        return MediaRef(kind, f"{at}.url", source=_string(inner.get("url"), f"{at}.url"), **_video_options(inner, at))

    return read


def _short_part(kind: str) -> Callable[[dict, str], MediaRef]:
    """`{"type": "image", "image": URL}`, or `{"type": "image", "tensor": 0}` for raw tensor number 0 of that kind."""

    def read(part: dict, path: str) -> MediaRef:
        options = _VIDEO_OPTIONS if kind == "video" else ()
        body = _object(part, path, ("type", kind, "tensor", *options))
        extra = _video_options(body, path)
        if (kind in body) == ("tensor" in body):
            raise InvalidRequest(path, f"must have one of {kind!r} and 'tensor'")
        if kind in body:
            return MediaRef(kind, f"{path}.{kind}", source=_string(body[kind], f"{path}.{kind}"), **extra)
        tensor = _integer(body["tensor"], f"{path}.tensor", 0, 1_000_000)
        return MediaRef(kind, f"{path}.tensor", tensor=tensor, **extra)

    return read


def _input_audio(part: dict, path: str) -> MediaRef:
    """OpenAI's `{"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}`, in any readable format."""
    body = _object(part, path, ("type", "input_audio"))
    at = f"{path}.input_audio"
    inner = _object(body.get("input_audio"), at, ("data", "format"))
    data = _string(inner.get("data"), f"{at}.data")
    # Data here is always inline: without the prefix a file or web address could be meant.
    return MediaRef("audio", f"{at}.data", source=data if data.startswith("data:") else f"data:;base64,{data}")


_VIDEO_OPTIONS = ("fps", "num_frames", "use_audio_in_video")
_PART_READERS: dict[str, Callable[[dict, str], MediaRef] | type[str]] = {
    "text": str,
    "audio_url": _url_part("audio"),
    "input_audio": _input_audio,
    "image_url": _url_part("image"),
    "video_url": _url_part("video"),
    "audio": _short_part("audio"),
    "image": _short_part("image"),
    "video": _short_part("video"),
}


def _video_options(body: dict, path: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    fps = body.get("fps")
    if fps is not None:
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0.01 <= fps <= 120:
            raise InvalidRequest(f"{path}.fps", f"must be a number from 0.01 to 120, got {fps!r}")
        options["fps"] = float(fps)
    if body.get("num_frames") is not None:
        options["num_frames"] = _integer(body["num_frames"], f"{path}.num_frames", 1, 100_000)
    if len(options) == 2:
        raise InvalidRequest(f"{path}.num_frames", "may not be given together with fps")
    use_audio = body.get("use_audio_in_video", False)
    if not isinstance(use_audio, bool):
        raise InvalidRequest(f"{path}.use_audio_in_video", f"must be true or false, got {use_audio!r}")
    return options | {"use_audio": use_audio}


def _object(value: object, path: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(path, f"must be an object, got {type(value).__name__}")
    for name in value:
        if name not in allowed:
            raise InvalidRequest(f"{path}.{name}", f"unknown field; allowed: {', '.join(allowed)}")
    return value


def _string(value: object, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(path, f"must be a string, got {type(value).__name__}")
    return value


def _integer(value: object, path: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(path, f"must be an integer from {low} to {high}, got {value!r}")
    return value
