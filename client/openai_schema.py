"""The body of `POST /v1/chat/completions`, and the request of the client contract that it stands for."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from client.chat import chat
from client.openai_errors import bad_field

KEPT_S = 3600  # how long an answer's transcript may be named by the id of its audio
MOST_KEPT = 4096
# Top-level fields that are sampling parameters of the Thinker, by their names there.
_THINKER = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "repetition_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "stop": "stop",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
_OF_ANSWERS = ("refusal", "annotations", "function_call", "tool_calls")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Audio(_Strict):
    """`voice`: a name, or an object with it as `id`."""

    voice: str | None = None
    format: Literal["wav", "pcm16", "pcm", "flac", "mp3", "opus", "aac"] | None = None

    @field_validator("voice", mode="before")
    @classmethod
    def _id(cls, value: object) -> object:
        return value["id"] if isinstance(value, dict) and set(value) == {"id"} else value


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class VideoOptions(_Strict):
    """For all videos of a request; a part's own options go before."""

    use_audio_in_video: bool | None = None
    num_frames: int | None = None


class TextFormat(_Strict):
    type: Literal["text"]


class ChatRequest(_Strict):
    """OpenAI's fields, then vLLM-Omni's, then ours. The server checks the values of those that it is handed.

    The last are OpenAI's that cannot be honoured: null alone is taken.
    """

    messages: list[dict[str, Any]]
    model: str
    modalities: list[Literal["text", "audio"]] | None = Field(None, min_length=1, max_length=2)
    audio: Audio | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: Any = None
    n: Literal[1] | None = None
    response_format: TextFormat | None = None
    logprobs: Literal[False] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    top_k: int | None = None
    repetition_penalty: float | None = None
    sampling_params_list: list[dict[str, Any] | None] | None = Field(None, max_length=3)
    mm_processor_kwargs: VideoOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    sampling: dict[str, dict[str, Any]] | None = None
    timeouts: dict[str, float] | None = None
    audio_delta: Literal["audio", "content"] | None = None

    tools: None = None
    tool_choice: None = None
    parallel_tool_calls: None = None
    functions: None = None
    function_call: None = None
    top_logprobs: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None
    moderation: None = None
    prompt_cache_options: None = None
    prompt_cache_retention: None = None

    @property
    def wanted(self) -> list[str]:
        """The modalities of the answer."""
        return list(self.modalities or (["text"] if self.audio is None else ["text", "audio"]))

    @property
    def audio_format(self) -> str:
        return (self.audio and self.audio.format) or "wav"


class Transcripts:
    """What was said, by the id of the audio, for later turns that name it. Of too many the oldest go."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def keep(self, audio_id: str, text: str, expires_at: int) -> None:
        self._kept[audio_id] = (expires_at, text)
        while len(self._kept) > MOST_KEPT or next(iter(self._kept.values()))[0] < time.time():
            self._kept.popitem(last=False)

    def find(self, audio_id: object) -> str | None:
        expires_at, text = self._kept.get(audio_id, (0, "")) if isinstance(audio_id, str) else (0, "")
        return text if expires_at >= time.time() else None


def contract_request(body: ChatRequest, request_id: str, transcripts: Transcripts) -> tuple[str, dict[str, str]]:
    """The JSON for the server, and the client's names of the fields that the contract calls otherwise.

    Raises ApiError.
    """
    names = {"request": "body", "speaker": "audio.voice"}
    names |= {name: f"timeouts.{name}" for name in ("queue_s", "first_audio_s", "total_s")}
    if body.stream_options is not None and not body.stream:
        raise bad_field("stream_options", "is for streams: set stream")
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise bad_field("max_tokens", "is an old name of max_completion_tokens, which says otherwise")
    wanted = body.wanted
    if len(set(wanted)) != len(wanted):
        raise bad_field("modalities", "names a modality twice")
    request = chat(
        _messages(body, names, transcripts),
        # Speech comes with its transcript, whether the text itself is asked for or not.
        modalities=["text", "audio"] if "audio" in wanted else ["text"],
        speaker=body.audio.voice if body.audio is not None and "audio" in wanted else None,
        seed=body.seed,
        audio_format="int16",
        sampling=_sampling(body, names),
        timeouts=body.timeouts,
    )
    if body.chat_template_kwargs is not None:
        request["chat_template_kwargs"] = body.chat_template_kwargs
    try:
        return json.dumps(request | {"request_id": request_id}), names
    except RecursionError:
        raise bad_field("body", "is nested too deeply") from None


def _sampling(body: ChatRequest, names: dict[str, str]) -> dict[str, dict]:
    """Of a parameter that is given several times the last counts: by OpenAI's field, by stage, in `sampling`."""
    found: dict[str, dict] = {"thinker": {}, "talker": {}}

    def put(stage: str, key: str, value: object, name: str) -> None:
        if value is not None:
            found.setdefault(stage, {})[key] = value
            names[f"sampling.{stage}.{key}"] = name

    for name, key in _THINKER.items():
        put("thinker", key, getattr(body, name), name)
    # Code2Wav, the third stage, samples nothing; how ids become text is not vLLM's business here.
    for at, (stage, values) in enumerate(zip(("thinker", "talker"), body.sampling_params_list or (), strict=False)):
        for key, value in (values or {}).items():
            if key != "detokenize":
                put(stage, key, value, f"sampling_params_list[{at}].{key}")
    for stage, values in (body.sampling or {}).items():
        for key, value in values.items():
            put(stage, key, value, f"sampling.{stage}.{key}")
        found.setdefault(stage, {})
    return found


def _messages(body: ChatRequest, names: dict[str, str], transcripts: Transcripts) -> list[dict]:
    options = body.mm_processor_kwargs.model_dump(exclude_none=True) if body.mm_processor_kwargs is not None else {}
    messages = []
    for at, message in enumerate(body.messages):
        message = dict(message)
        if message.get("role") == "assistant":
            _earlier_answer(message, f"messages[{at}]", transcripts)
        content = message.get("content")
        if options and isinstance(content, list):
            message["content"] = [
                _with_options(part, options, f"messages[{at}].content[{number}]", names)
                for number, part in enumerate(content)
            ]
        messages.append(message)
    return messages


def _earlier_answer(message: dict, path: str, transcripts: Transcripts) -> None:
    """An answer of ours as it was given, null fields and all; speech is named by its id."""
    for name in _OF_ANSWERS:
        if message.pop(name, None) not in (None, []):
            raise bad_field(f"{path}.{name}", "is not supported by this server")
    audio = message.pop("audio", None)
    if audio is None:
        return
    text = transcripts.find(audio.get("id") if isinstance(audio, dict) else None)
    if text is None:
        raise bad_field(f"{path}.audio.id", "names no answer of the last hour: send its transcript as content")
    message["content"] = text


def _with_options(part: object, options: dict, path: str, names: dict[str, str]) -> object:
    if not isinstance(part, dict) or part.get("type") != "video_url" or not isinstance(part.get("video_url"), dict):
        return part
    names |= {f"{path}.video_url.{name}": f"mm_processor_kwargs.{name}" for name in options.keys() - part["video_url"]}
    return part | {"video_url": options | part["video_url"]}
