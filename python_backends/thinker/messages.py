"""OpenAI-style messages: checked, split into what the chat template renders and the media beside it."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.media.refs import MEDIA_KINDS, MediaRef

ROLES = ("system", "developer", "user", "assistant")
LONGEST_NAME = 64
# Text that fills a context has 2 to 6 characters a token; only runs of one character reach more than this.
CHARS_PER_TOKEN = 16


@dataclass(frozen=True)
class Conversation:
    """`messages` in the form that the checkpoint's chat template takes; `media` in the order of the prompt."""

    messages: list[dict[str, Any]]
    media: list[MediaRef] = field(default_factory=list)


@dataclass(frozen=True)
class PromptRules:
    """What one server takes in a prompt: text without `control_tokens`, the special ones, and so much of it that the
    `context`, in tokens, could hold it; `media` within their limits, none when it is None.
    """

    control_tokens: tuple[str, ...]
    context: int
    media: MediaOptions | None

    def check_size(self, count: int, what: str, limit: int) -> None:
        """Raises InvalidRequest when `count` is above `limit`."""
        if count > limit:
            reason = f"have {count} {what} or more; the context of {self.context} tokens takes {limit} at most"
            raise InvalidRequest("messages", reason)


def parse_messages(messages: object, rules: PromptRules) -> Conversation:
    """Check `messages` and collect their media.

    Rendering and tokenizing cost up to microseconds a character, so what cannot fit is refused here by its size alone,
    before the rest of it is looked at. Raises InvalidRequest that names the field.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages", "must be a list with at least one message")
    # Each message makes at least the token that ends it.
    rules.check_size(len(messages), "messages", rules.context)
    parser = _Parser(rules)
    rendered = [parser.message(message, f"messages[{at}]") for at, message in enumerate(messages)]
    return Conversation(rendered, parser.media)


class _Parser:
    def __init__(self, rules: PromptRules) -> None:
        self._rules = rules
        self._chars = 0
        self._parts = 0
        self._counts = dict.fromkeys(MEDIA_KINDS, 0)
        self.media: list[MediaRef] = []

    def message(self, message: object, path: str) -> dict[str, Any]:
        body = _object(message, path, ("role", "content", "name"))
        role = body.get("role")
        if role not in ROLES:
            raise InvalidRequest(f"{path}.role", f"must be one of {', '.join(ROLES)}; got {reprlib.repr(role)}")
        # OpenAI's newer word for it, which templates do not know.
        head = {"role": "system" if role == "developer" else role, **self._name(body.get("name"), f"{path}.name")}
        content = body.get("content")
        if isinstance(content, str):
            return head | {"content": self._text(content, f"{path}.content")}
        if not isinstance(content, list):
            raise InvalidRequest(f"{path}.content", "must be a string or a list of parts")
        # Empty texts make no token, so the context bounds no parts; more parts than tokens have no use.
        self._parts += len(content)
        self._rules.check_size(self._parts, "content parts", self._rules.context)
        parts = [self._part(part, f"{path}.content[{at}]") for at, part in enumerate(content)]
        self._check_joints(parts, f"{path}.content")
        return head | {"content": parts}

    def _name(self, name: object, path: str) -> dict[str, str]:
        """For templates that know who speaks."""
        if name is None:
            return {}
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise InvalidRequest(path, f"must be a string of 1 to {LONGEST_NAME} characters")
        return {"name": self._text(name, path)}

    def _check_joints(self, parts: list[dict[str, Any]], path: str) -> None:
        """Texts side by side are one text in the prompt: together they may not make a control token either.

        Nothing else in a prompt can complete one: around a content and around media the template writes whole control
        tokens and line ends, and a control token has its only `<` in front and its only `>` at its end.
        """
        for is_text, run in itertools.groupby(parts, key=lambda part: part["type"] == "text"):
            texts = [part["text"] for part in run] if is_text else []
            if len(texts) > 1:
                self._check_control_tokens("".join(texts), path)

    def _part(self, part: object, path: str) -> dict[str, Any]:
        if not isinstance(part, dict):
            raise InvalidRequest(path, f"must be an object, got {type(part).__name__}")
        kind = part.get("type")
        reader = _PART_READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise InvalidRequest(f"{path}.type", f"must be one of {', '.join(_PART_READERS)}; got {reprlib.repr(kind)}")
        if kind in ("text", "input_text"):
            body = _object(part, path, ("type", "text"))
            return {"type": "text", "text": self._text(body.get("text"), f"{path}.text")}
        ref = reader(part, path)
        self._count(ref)
        self.media.append(ref)
        return {"type": ref.kind}

    def _count(self, ref: MediaRef) -> None:
        if self._rules.media is None:
            raise InvalidRequest(ref.field, "this server takes text only")
        for kind in (ref.kind, "audio") if ref.use_audio else (ref.kind,):
            self._counts[kind] += 1
            number, limit = self._counts[kind], self._rules.media.limit(kind)
            if number > limit:
                raise InvalidRequest(ref.field, f"is {kind} number {number}; this server takes {limit} a request")

    def _text(self, text: object, path: str) -> str:
        if not isinstance(text, str):
            raise InvalidRequest(path, f"must be a string, got {type(text).__name__}")
        self._chars += len(text)
        self._rules.check_size(self._chars, "characters of text", self._rules.context * CHARS_PER_TOKEN)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(path, "holds half of a surrogate pair") from None
        self._check_control_tokens(text, path)
        return text

    def _check_control_tokens(self, text: str, path: str) -> None:
        # A control token in plain text would end the turn or stand for media that are not there.
        for token in self._rules.control_tokens:
            if token in text:
                raise InvalidRequest(path, f"may not contain the control token {token!r}")


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
        body = {name: value for name, value in body.items() if value is not None}
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


def _input_image(part: dict, path: str) -> MediaRef:
    """`{"type": "input_image", "image_url": URL, "detail": ...}`, of OpenAI's Responses API."""
    body = _object(part, path, ("type", "image_url", "detail"))
    return MediaRef("image", f"{path}.image_url", source=_string(body.get("image_url"), f"{path}.image_url"))


_VIDEO_OPTIONS = ("fps", "num_frames", "use_audio_in_video")
_PART_READERS: dict[str, Callable[..., Any]] = {
    "text": str,
    "input_text": str,
    "audio_url": _url_part("audio"),
    "input_audio": _input_audio,
    "input_image": _input_image,
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
            raise InvalidRequest(f"{path}.fps", f"must be a number from 0.01 to 120, got {reprlib.repr(fps)}")
        options["fps"] = float(fps)
    if body.get("num_frames") is not None:
        options["num_frames"] = _integer(body["num_frames"], f"{path}.num_frames", 1, 100_000)
    if len(options) == 2:
        raise InvalidRequest(f"{path}.num_frames", "may not be given together with fps")
    use_audio = body.get("use_audio_in_video")
    use_audio = False if use_audio is None else use_audio
    if not isinstance(use_audio, bool):
        raise InvalidRequest(f"{path}.use_audio_in_video", f"must be true or false, got {reprlib.repr(use_audio)}")
    return options | {"use_audio": use_audio}


def _object(value: object, path: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(path, f"must be an object, got {type(value).__name__}")
    for name in value:
        if name not in allowed:
            raise InvalidRequest(f"{path}.{name[:64]}", f"unknown field; allowed: {', '.join(allowed)}")
    return value


def _string(value: object, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(path, f"must be a string, got {type(value).__name__}")
    return value


def _integer(value: object, path: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(path, f"must be an integer from {low} to {high}, got {reprlib.repr(value)}")
    return value
