"""The client's JSON as something that every later part of the way can carry."""

from __future__ import annotations

import json
from typing import Any

from python_backends.config.errors import InvalidRequest

# What the wire carries, and more levels than any request needs.
SMALLEST, LARGEST, DEEPEST = -(2**63), 2**64 - 1, 32


def load_json(raw: bytes | str) -> Any:
    """Parse UTF-8 JSON. Raises InvalidRequest that names the field of what the wire or UTF-8 cannot carry: half a
    surrogate pair, an integer beyond 64 bits, lists and objects nested deeper than DEEPEST."""
    try:
        body = json.loads(raw if isinstance(raw, str) else raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("request", f"is not JSON in UTF-8: {error}") from None
    left: list[tuple[str, Any, int]] = [("", body, 0)]
    while left:
        path, value, depth = left.pop()
        if isinstance(value, str):
            _check_text(path, value)
        elif isinstance(value, int):
            if not SMALLEST <= value <= LARGEST:
                raise InvalidRequest(path or "request", "is an integer of more than 64 bits")
        elif isinstance(value, (dict, list)):
            if depth == DEEPEST:
                raise InvalidRequest(path, f"is nested deeper than {DEEPEST} levels")
            if isinstance(value, dict):
                for name in value:
                    _check_text(f"{path}.{name}" if path else name, name)
                inside = ((f"{path}.{name}" if path else name, one) for name, one in value.items())
            else:
                inside = ((f"{path}[{at}]", one) for at, one in enumerate(value))
            left += [(name, one, depth + 1) for name, one in inside if isinstance(one, (str, int, dict, list))]
    return body


def _check_text(path: str, text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(path or "request", "has half of a surrogate pair") from None
