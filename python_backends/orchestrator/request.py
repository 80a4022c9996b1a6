"""The client's request: one JSON object, parsed into a typed, validated OmniRequest."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from python_backends.config.errors import InvalidRequest
from python_backends.config.media_inputs import MediaArrays, split_media
from python_backends.config.sampling import TalkerSampling, ThinkerSampling, sampling_from_dict
from python_backends.config.schema import keys_of, unknown_key
from python_backends.orchestrator.json_body import load_json
from python_backends.orchestrator.limits import Timeouts, parse_timeouts

MODALITIES = ("text", "audio")
AUDIO_FORMATS = ("float32", "int16")
MAX_REQUEST_BYTES = 256 * 1024 * 1024
LONGEST_ID = 128


@dataclass(frozen=True)
class OmniRequest:
    """What a client asks for.

    Fields of the JSON object, all but `messages` optional:

    - `messages`: OpenAI-style list of `{"role", "content"}`; content is a string or a list of typed parts.
    - `modalities`: any of "text" and "audio", at least one; default both.
    - `speaker`: a voice of the checkpoint, in any case; default "Ethan".
    - `seed`: integer from 0 to 2**63-1; drawn and reported in the summary when missing.
    - `sampling`: `{"thinker": {...}, "talker": {...}}`, see ThinkerSampling and TalkerSampling.
    - `audio_format`: "float32" (default) or "int16".
    - `timeouts`: `{"queue_s", "first_audio_s", "total_s"}`, see Timeouts; the server's own are the longest allowed.
    - `chat_template_kwargs`: variables of the checkpoint's chat template, with plain values.
    - `request_id`: the client's own name for the request, for the summary and the server's log.

    null stands for the default of an optional field.
    """

    messages: list[dict]
    modalities: tuple[str, ...]
    speaker: str
    seed: int
    thinker: ThinkerSampling
    talker: TalkerSampling
    audio_format: str
    timeouts: Timeouts = Timeouts()
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    request_id: str = ""

    @property
    def wants_text(self) -> bool:
        return "text" in self.modalities

    @property
    def wants_audio(self) -> bool:
        return "audio" in self.modalities


FIELDS = (
    *("messages", "modalities", "speaker", "seed", "sampling", "audio_format", "timeouts"),
    *("chat_template_kwargs", "request_id"),
)


@dataclass(frozen=True)
class RequestDefaults:
    """What the server gives a request that does not say: sampling parameters by stage name, a seed (None: drawn).

    `modalities` is what the server can answer in.
    """

    sampling: dict[str, dict] = field(default_factory=dict)
    seed: int | None = None
    modalities: tuple[str, ...] = MODALITIES


def parse_request(
    raw: bytes | str,
    defaults: RequestDefaults | None = None,
    media: MediaArrays | None = None,
    request_id: str = "",
) -> OmniRequest:
    """Parse and validate the client's JSON, and what can be said of the raw `media` beside it (see `split_media`).

    Raises InvalidRequest that names the field. What only a stage can know (speakers of the checkpoint, content parts,
    the length of the prompt) is checked when the stage opens the stream.
    """
    _check_size(raw, media or {})
    body = load_json(raw)
    if not isinstance(body, dict):
        raise InvalidRequest("request", f"must be a JSON object, got {type(body).__name__}")
    for name in body:
        if name not in FIELDS:
            raise InvalidRequest(str(name), _unknown(name, FIELDS))
    body = {name: value for name, value in body.items() if value is not None}
    split_media(media or {})
    defaults = defaults or RequestDefaults()
    thinker, talker = _sampling(body.get("sampling"), defaults.sampling)
    return OmniRequest(
        messages=_messages(body),
        modalities=_modalities(body.get("modalities", list(defaults.modalities)), defaults.modalities),
        speaker=_speaker(body.get("speaker", "Ethan")),
        seed=_seed(body.get("seed", defaults.seed)),
        thinker=thinker,
        talker=talker,
        audio_format=_one_of("audio_format", body.get("audio_format", "float32"), AUDIO_FORMATS),
        timeouts=parse_timeouts(body.get("timeouts")),
        chat_template_kwargs=_template_variables(body.get("chat_template_kwargs", {})),
        request_id=_request_id(body.get("request_id", request_id)),
    )


def _unknown(name: str, known: Any) -> str:
    return unknown_key(name, known).replace("unknown key", "unknown field")


def _request_id(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_ID:
        raise InvalidRequest("request_id", f"must be a string of at most {LONGEST_ID} characters")
    return value


def _template_variables(value: object) -> dict[str, Any]:
    """Which of them the template knows is the Thinker's to say."""
    if not isinstance(value, dict):
        raise InvalidRequest("chat_template_kwargs", f"must be an object, got {type(value).__name__}")
    for name, one in value.items():
        if not isinstance(one, (str, int, float, bool)):
            raise InvalidRequest(f"chat_template_kwargs.{name}", "must be a string, a number, true or false")
    return value


def asks_for_description(raw: bytes | str) -> bool:
    """Whether the request is `{"describe": true}`. Raises InvalidRequest when it asks for more."""
    if len(raw) > 1000 or ("describe" not in raw if isinstance(raw, str) else b"describe" not in raw):
        return False
    body = load_json(raw)
    if not isinstance(body, dict) or body.get("describe") is not True:
        return False
    for name in body:
        if name not in ("describe", "request_id"):
            raise InvalidRequest(str(name), "may not stand beside describe")
    return True


def _check_size(raw: bytes | str, media: MediaArrays) -> None:
    if len(raw) + sum(array.nbytes for array in media.values()) > MAX_REQUEST_BYTES:
        field = max(media, key=lambda name: media[name].nbytes, default="request")
        raise InvalidRequest(field, f"request and raw media together are larger than {MAX_REQUEST_BYTES} bytes")


def _messages(body: dict) -> list[dict]:
    messages = body.get("messages")
    if messages is None:
        raise InvalidRequest("messages", "is required")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages", "must be a list with at least one message")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages[{at}]", f"must be an object, got {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{at}].role", "must be a string")
        if not isinstance(message.get("content"), (str, list)):
            raise InvalidRequest(f"messages[{at}].content", "must be a string or a list of parts")
    return messages


def _modalities(value: object, able: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest("modalities", f"must be a list with at least one of {', '.join(MODALITIES)}")
    for name in value:
        _one_of("modalities", name, MODALITIES)
    if len(set(value)) != len(value):
        raise InvalidRequest("modalities", "names a modality twice")
    for name in value:
        if name not in able:
            raise InvalidRequest("modalities", f"this server answers in {' and '.join(able)} only, not in {name}")
    return tuple(name for name in MODALITIES if name in value)


def _speaker(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest("speaker", f"must be a name, got {value!r}")
    return value


def _seed(value: object) -> int:
    if value is None:
        return secrets.randbits(31)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidRequest("seed", f"must be an integer from 0 to 2**63-1, got {value!r}")
    return value


def _one_of(field: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed or not isinstance(value, str):
        raise InvalidRequest(field, f"must be one of {', '.join(allowed)}; got {value!r}")
    return value


def _sampling(value: object, defaults: dict[str, dict]) -> tuple[ThinkerSampling, TalkerSampling]:
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise InvalidRequest("sampling", f"must be an object, got {type(value).__name__}")
    for name in value:
        if name not in ("thinker", "talker"):
            raise InvalidRequest(f"sampling.{name}", _unknown(name, ("thinker", "talker")))
    built = []
    for name, cls in (("thinker", ThinkerSampling), ("talker", TalkerSampling)):
        asked = {} if value.get(name) is None else value[name]
        if isinstance(asked, dict):
            known = keys_of(cls)
            given = {key: one for key, one in asked.items() if one is not None or key not in known}
            asked = {key: v for key, v in defaults.get(name, {}).items() if key in known} | given
        built.append(sampling_from_dict(cls, asked, f"sampling.{name}"))
    return built[0], built[1]
