"""A small schema: dataclass fields carry how a YAML value is checked and what it means, for errors and for the docs."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from typing import Any


class SchemaError(ValueError):
    """A value is wrong. `where` is the dotted key, `reason` says what is allowed."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.where = where
        self.reason = reason


class Kind:
    """How a value is checked. `name` is what the reference page prints; `parse` returns the value to keep."""

    def __init__(self, name: str, accept: Callable[[Any], bool]) -> None:
        self.name = name
        self._accept = accept

    def parse(self, value: Any, where: str) -> Any:
        if not self._accept(value):
            raise SchemaError(where, f"must be {self.name}, got {value!r}")
        return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def boolean() -> Kind:
    return Kind("true or false", lambda v: isinstance(v, bool))


def integer(low: int, high: int | None = None) -> Kind:
    bounds = f"at least {low}" if high is None else f"from {low} to {high}"
    return Kind(f"an integer, {bounds}", lambda v: _is_integer(v) and v >= low and (high is None or v <= high))


def number(low: float, high: float | None = None) -> Kind:
    bounds = f"above {low:g}" if high is None else f"above {low:g}, up to {high:g}"

    def accept(value: Any) -> bool:
        is_number = _is_integer(value) or isinstance(value, float)
        return is_number and math.isfinite(value) and value > low and (high is None or value <= high)

    return Kind(f"a number, {bounds}", accept)


def text(example: str) -> Kind:
    return Kind(f'a string such as "{example}"', lambda v: isinstance(v, str) and bool(v))


def one_of(*allowed: str) -> Kind:
    return Kind(f"one of {', '.join(allowed)}", lambda v: isinstance(v, str) and v in allowed)


def mapping(of: str) -> Kind:
    return Kind(f"a mapping of {of}", lambda v: isinstance(v, dict) and all(isinstance(name, (str, int)) for name in v))


def variables() -> Kind:
    def accept(value: Any) -> bool:
        return isinstance(value, dict) and all(
            isinstance(name, str)
            and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
            and isinstance(item, (str, int, float))
            and "\0" not in str(item)
            for name, item in value.items()
        )

    return Kind("a mapping of environment variables", accept)


def listing(of: str, accept: Callable[[Any], bool]) -> Kind:
    return Kind(f"a list of {of}", lambda v: isinstance(v, list) and bool(v) and all(accept(item) for item in v))


class Either(Kind):
    """The first of several kinds that takes the value."""

    def __init__(self, *kinds: Kind) -> None:
        super().__init__(" or ".join(kind.name for kind in kinds), lambda v: any(kind._accept(v) for kind in kinds))


class Section(Kind):
    """A mapping with the keys of a schema dataclass."""

    def __init__(self, cls: type) -> None:
        super().__init__("a mapping with the keys below", lambda v: isinstance(v, dict))
        self.cls = cls

    def parse(self, value: Any, where: str) -> Any:
        return parse_section(self.cls, super().parse(value, where), where)


class Named(Kind):
    """A mapping of free names to sections."""

    def __init__(self, cls: type) -> None:
        super().__init__("a mapping of names to mappings with the keys below", lambda v: isinstance(v, dict))
        self.cls = cls

    def parse(self, value: Any, where: str) -> dict[str, Any]:
        section = Section(self.cls)
        return {name: section.parse(item, f"{where}.{name}") for name, item in super().parse(value, where).items()}


def key(kind: Kind, doc: str, default: Any = None, ignored: bool = False) -> Any:
    """A dataclass field for one YAML key. A default of None means unset; `null` in the YAML means the default.

    `ignored` keys are taken, so that files written for other servers load, and have no effect.
    """
    metadata = {"kind": kind, "doc": doc, "ignored": ignored}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def keys_of(cls: type) -> dict[str, Field]:
    """The YAML keys of a schema dataclass, in order."""
    return {item.name: item for item in fields(cls) if "kind" in item.metadata}


def default_of(item: Field) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def parse_section(cls: type, values: dict, where: str) -> Any:
    """Build `cls` from a mapping. Raises SchemaError for an unknown key or a wrong value."""
    known = keys_of(cls)
    parsed = {}
    for name, value in values.items():
        at = f"{where}.{name}" if where else str(name)
        if name not in known:
            raise SchemaError(at, unknown_key(name, known))
        if value is None:
            continue
        parsed[name] = known[name].metadata["kind"].parse(value, at)
    return cls(**parsed)


def unknown_key(name: Any, known: Any, also: Any = ()) -> str:
    """What to say of a key that is none of `known`, which are listed, nor of `also`, which are too many to list."""
    close = difflib.get_close_matches(str(name), [*known, *also], 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown key; {hint}allowed: {', '.join(known)}"
