"""Sampling parameters of each stage, with the defaults published for Qwen3-Omni. Each field is declared here alone."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from python_backends.config.errors import InvalidRequest
from python_backends.config.schema import Kind, SchemaError, boolean, default_of, integer, key, keys_of, unknown_key

MOST_TEXTS, LONGEST_TEXT = 64, 1024
LONGEST_GRAMMAR = 64 * 1024
MOST_TOP_LOGPROBS = 20
MOST_BIASES = 300


def between(low: float, high: float) -> Kind:
    def accept(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high

    return Kind(f"a number from {low:g} to {high:g}", accept)


def _list_of(what: str, accept: Callable[[Any], bool]) -> Kind:
    name = f"a list of at most {MOST_TEXTS} {what}"
    return Kind(name, lambda v: isinstance(v, (list, tuple)) and len(v) <= MOST_TEXTS and all(map(accept, v)))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _texts() -> Kind:
    return _list_of(f"strings of 1 to {LONGEST_TEXT} characters", _is_text)


class _Stop(Kind):
    """A string stands for a list of one."""

    def __init__(self) -> None:
        super().__init__(f"a string or {_texts().name}", lambda v: _is_text(v) or _texts()._accept(v))

    def parse(self, value: Any, where: str) -> list[str]:
        value = super().parse(value, where)
        return [value] if isinstance(value, str) else list(value)


class _Biases(Kind):
    """JSON's names are strings: ids are taken in either form."""

    def __init__(self) -> None:
        super().__init__(f"an object of at most {MOST_BIASES} token ids with numbers from -100 to 100", self._fits)

    @staticmethod
    def _fits(value: Any) -> bool:
        bias = between(-100, 100)
        return (
            isinstance(value, dict)
            and len(value) <= MOST_BIASES
            and all(
                _is_id(name) or (isinstance(name, str) and re.fullmatch(r"0|[1-9][0-9]{0,8}", name)) for name in value
            )
            and all(bias._accept(one) for one in value.values())
        )

    def parse(self, value: Any, where: str) -> dict[str, float]:
        return {str(int(name)): float(one) for name, one in super().parse(value, where).items()}


_OBJECT = Kind("an object", lambda v: isinstance(v, dict))


class _Sampling:
    """Checks itself: raises InvalidRequest with the field's name for a value out of range."""

    def __post_init__(self) -> None:
        for name, item in keys_of(type(self)).items():
            value = getattr(self, name)
            if value is None and default_of(item) is None:
                continue
            try:
                object.__setattr__(self, name, item.metadata["kind"].parse(value, name))
            except SchemaError as error:
                # A client's value may be long.
                reason = error.reason.split(", got ")[0]
                raise InvalidRequest(error.where, f"{reason}, got {reprlib.repr(value)}") from None
        for name in ("top_k", "predictor_top_k"):
            if getattr(self, name, 0) == -1:
                object.__setattr__(self, name, 0)


@dataclass(frozen=True)
class ThinkerSampling(_Sampling):
    """How the Thinker picks text ids, and what ends or shapes its text."""

    temperature: float = key(between(0, 2), "0 is greedy.", 0.0)
    top_k: int = key(integer(-1, 1_000_000), "Most likely ids kept; 0 and -1: all.", 0)
    top_p: float = key(between(1e-6, 1), "Probability of the ids kept.", 1.0)
    min_p: float = key(between(0, 1), "Least probability of an id, relative to the most likely one's.", 0.0)
    repetition_penalty: float = key(between(0.01, 10), "For ids of prompt and answer; 1: none.", 1.0)
    presence_penalty: float = key(between(-2, 2), "Taken off the logit of an id that the answer has.", 0.0)
    frequency_penalty: float = key(between(-2, 2), "The same for each time that the answer has it.", 0.0)
    max_tokens: int = key(integer(1, 1_000_000), "Most ids of the answer.", 2048)
    min_tokens: int = key(integer(0, 1_000_000), "Ids before an end, a stop string or a stop id is possible.", 0)
    ignore_eos: bool = key(boolean(), "No end before `max_tokens`.", False)
    stop: list[str] | None = key(
        _Stop(), "The answer ends before the first of these strings, which is neither sent nor spoken."
    )
    include_stop_str_in_output: bool = key(boolean(), "The answer ends behind the stop string instead.", False)
    stop_token_ids: list[int] | None = key(
        _list_of("token ids", _is_id), "The answer ends before the first of these ids."
    )
    bad_words: list[str] | None = key(_texts(), "Words that the answer never has, as vLLM tokenizes them.")
    logit_bias: dict | None = key(_Biases(), "Added to the logits of token ids.")
    logprobs: bool = key(boolean(), "Log probabilities of the answer's ids, with its deltas and in the summary.", False)
    top_logprobs: int = key(integer(0, MOST_TOP_LOGPROBS), "So many of the likeliest ids beside each.", 0)
    response_format: dict | None = key(
        _OBJECT, '`{"type": "json_object"}` or `{"type": "json_schema", "json_schema": {"schema": {}}}`, as OpenAI\'s.'
    )
    structured_outputs: dict | None = key(
        _OBJECT, "One of `json`, `regex`, `choice`, `grammar`, `json_object`, as vLLM's."
    )
    n: int = key(integer(1, 1), "One answer a request.", 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest("min_tokens", f"is {self.min_tokens}, more than max_tokens, {self.max_tokens}")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs", "needs logprobs to be true")
        self.constraint()

    @property
    def shaped_by(self) -> str | None:
        """The field that says what the text must be."""
        if self.constraint() is None:
            return None
        return "response_format" if self.response_format is not None else "structured_outputs"

    def constraint(self) -> dict[str, Any] | None:
        """What the text must be, as the one field of vLLM's StructuredOutputsParams that says so."""
        if self.response_format is None:
            return None if self.structured_outputs is None else _structured(self.structured_outputs)
        if self.structured_outputs is not None:
            raise InvalidRequest("response_format", "may not be given together with structured_outputs")
        return _response_format(self.response_format)


@dataclass(frozen=True)
class TalkerSampling(_Sampling):
    """How the Talker picks codes. The `predictor_` fields belong to the code predictor (groups 1 to 15); its values are
    those of `transformers`' Qwen3-Omni."""

    temperature: float = key(between(0, 10), "0 is greedy in all code groups.", 0.9)
    top_k: int = key(integer(-1, 1_000_000), "Most likely codes kept; 0 and -1: all.", 50)
    top_p: float = key(between(1e-6, 1), "Probability of the codes kept.", 1.0)
    repetition_penalty: float = key(between(0.01, 10), "For codes of the speech so far; 1: none.", 1.05)
    max_tokens: int = key(integer(1, 4096), "Most codec frames, of 80 ms each.", 4096)
    ignore_eos: bool = key(boolean(), "The codec end token is suppressed.", False)
    predictor_temperature: float = key(between(0.01, 10), "Of the code predictor.", 1.0)
    predictor_top_k: int = key(integer(-1, 1_000_000), "Of the code predictor; 0 and -1: all.", 50)
    predictor_top_p: float = key(between(1e-6, 1), "Of the code predictor.", 0.8)


def sampling_from_dict(cls: type, values: object, path: str) -> Any:
    """Build `cls` from a JSON object, in which null means the default; `path` prefixes field names in errors."""
    if not isinstance(values, dict):
        raise InvalidRequest(path, f"must be an object, got {type(values).__name__}")
    known = keys_of(cls)
    for name in values:
        if name not in known:
            raise InvalidRequest(f"{path}.{name}", unknown_key(name, known).replace("unknown key", "unknown field"))
    try:
        return cls(**{name: value for name, value in values.items() if value is not None})
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}.{error.field}", error.reason) from None


def _response_format(value: dict) -> dict[str, Any] | None:
    kind = value.get("type")
    kinds = {"text": (), "json_object": (), "json_schema": ("json_schema",)}
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidRequest("response_format.type", f"must be one of {', '.join(kinds)}; got {reprlib.repr(kind)}")
    _only(value, ("type", *kinds[kind]), "response_format")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    inner = value.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise InvalidRequest("response_format.json_schema.schema", "must be a JSON schema, an object")
    _only(inner, ("name", "description", "schema", "strict"), "response_format.json_schema")
    _check_refs(inner["schema"], "response_format.json_schema.schema")
    return {"json": inner["schema"]}


def _check_refs(schema: Any, field: str) -> None:
    """Nothing outside a schema is read: the grammar's compiler would take such a reference for "anything at all"."""
    rest = [schema]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            ref = one.get("$ref")
            if isinstance(ref, str) and ref != "#" and not ref.startswith("#/"):
                reason = f'has the reference {reprlib.repr(ref)}: taken are "#" and those that begin with "#/"'
                raise InvalidRequest(field, reason)
            # What follows these names is data.
            rest += [value for name, value in one.items() if name not in ("const", "enum", "default", "examples")]
        elif isinstance(one, list):
            rest += one


_STRUCTURED = {
    "json": lambda v: isinstance(v, dict) or (isinstance(v, str) and 0 < len(v) <= LONGEST_GRAMMAR),
    "regex": lambda v: isinstance(v, str) and 0 < len(v) <= LONGEST_TEXT,
    "choice": lambda v: isinstance(v, list) and bool(v) and _texts()._accept(v),
    "grammar": lambda v: isinstance(v, str) and 0 < len(v) <= LONGEST_GRAMMAR,
    "json_object": lambda v: v is True,
}


def _structured(value: dict) -> dict[str, Any]:
    _only(value, tuple(_STRUCTURED), "structured_outputs")
    given = {name: one for name, one in value.items() if one is not None}
    if len(given) != 1:
        raise InvalidRequest("structured_outputs", f"must have one of {', '.join(_STRUCTURED)}")
    ((name, one),) = given.items()
    if not _STRUCTURED[name](one):
        shapes = {"json": "a JSON schema", "choice": f"{_texts().name}, at least one", "json_object": "true"}
        raise InvalidRequest(
            f"structured_outputs.{name}", f"must be {shapes.get(name, 'a string that is not too long')}"
        )
    if name == "json":
        try:
            schema = json.loads(one) if isinstance(one, str) else one
        except (ValueError, RecursionError):
            raise InvalidRequest("structured_outputs.json", "is not a JSON schema: it is not JSON") from None
        _check_refs(schema, "structured_outputs.json")
    return given


def _only(value: dict, allowed: tuple[str, ...], path: str) -> None:
    for name in value:
        if name not in allowed:
            raise InvalidRequest(
                f"{path}.{str(name)[:64]}", unknown_key(name, allowed).replace("unknown key", "unknown field")
            )
