"""Requests of the client contract, with the names and types of their fields."""

from __future__ import annotations

from collections.abc import Sequence


def chat(
    messages: str | Sequence[dict],
    *,
    modalities: Sequence[str] | None = None,
    speaker: str | None = None,
    seed: int | None = None,
    audio_format: str | None = None,
    sampling: dict[str, dict] | None = None,
    timeouts: dict[str, float] | None = None,
) -> dict:
    """A new request body; what is None is left to the server.

    `messages`: OpenAI-style messages, or the text of one of the user. `modalities`: "text", "audio" or both.
    `audio_format`: "float32" or "int16". `sampling`: `{"thinker": {...}, "talker": {...}}`. `timeouts`: seconds, as
    `queue_s`, `first_audio_s` and `total_s`. The server checks the values.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    given = {
        "modalities": None if modalities is None else list(modalities),
        "speaker": speaker,
        "seed": seed,
        "audio_format": audio_format,
        "sampling": sampling,
        "timeouts": timeouts,
    }
    return {"messages": list(messages)} | {name: value for name, value in given.items() if value is not None}
