"""Sampling parameters of each stage, with the defaults published for Qwen3-Omni."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from python_backends.config.errors import InvalidRequest


def _in_range(owner: object, name: str, low: float, high: float) -> None:
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidRequest(name, f"must be a number from {low} to {high}, got {value!r}")


def _integer(owner: object, name: str, low: int, high: int) -> None:
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(name, f"must be an integer from {low} to {high}, got {value!r}")


def _boolean(owner: object, name: str) -> None:
    if not isinstance(getattr(owner, name), bool):
        raise InvalidRequest(name, f"must be true or false, got {getattr(owner, name)!r}")


@dataclass(frozen=True)
class ThinkerSampling:
    """How the Thinker picks text ids. `temperature` 0 is greedy; `top_k` 0 keeps every id.

    Raises InvalidRequest with the field's name for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    max_tokens: int = 2048
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _in_range(self, "temperature", 0.0, 10.0)
        _integer(self, "top_k", 0, 1_000_000)
        _in_range(self, "top_p", 1e-6, 1.0)
        _in_range(self, "repetition_penalty", 0.01, 10.0)
        _integer(self, "max_tokens", 1, 1_000_000)
        _boolean(self, "ignore_eos")


@dataclass(frozen=True)
class TalkerSampling:
    """How the Talker picks codes. `max_tokens` counts codec frames of 80 ms.

    `temperature` 0 is greedy in all code groups. The `predictor_` fields belong to the code predictor (groups 1 to
    15); its values are those of `transformers`' Qwen3-Omni. `ignore_eos` suppresses the codec end token.
    Raises InvalidRequest with the field's name for a value out of range.
    """

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    max_tokens: int = 4096
    ignore_eos: bool = False
    predictor_temperature: float = 1.0
    predictor_top_k: int = 50
    predictor_top_p: float = 0.8

    def __post_init__(self) -> None:
        _in_range(self, "temperature", 0.0, 10.0)
        _integer(self, "top_k", 0, 1_000_000)
        _in_range(self, "top_p", 1e-6, 1.0)
        _in_range(self, "repetition_penalty", 0.01, 10.0)
        _integer(self, "max_tokens", 1, 4096)
        _boolean(self, "ignore_eos")
        _in_range(self, "predictor_temperature", 0.01, 10.0)
        _integer(self, "predictor_top_k", 0, 1_000_000)
        _in_range(self, "predictor_top_p", 1e-6, 1.0)


def sampling_from_dict(cls: type, values: object, path: str) -> Any:
    """Build `cls` from a JSON object; `path` prefixes field names in errors. Unknown fields are errors."""
    if not isinstance(values, dict):
        raise InvalidRequest(path, f"must be an object, got {type(values).__name__}")
    known = [f.name for f in fields(cls)]
    for name in values:
        if name not in known:
            raise InvalidRequest(f"{path}.{name}", f"unknown field; allowed: {', '.join(known)}")
    try:
        return cls(**values)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}.{error.field}", error.reason) from None
