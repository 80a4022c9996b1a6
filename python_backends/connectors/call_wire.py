"""Calls to an engine process on the wire: msgpack, with the NumPy arrays anywhere in it as raw frames behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from python_backends.config.errors import ProtocolError
from python_backends.connectors.chunk import DTYPES

_ARRAY = 1  # msgpack extension type: the array's frame, dtype and shape


def pack(message: dict) -> list[bytes | memoryview]:
    """The frames of one message. Raises ValueError for an array whose dtype the data plane does not carry."""
    arrays: list[memoryview] = []

    def place(value: Any) -> msgpack.ExtType:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"cannot be sent: {type(value).__name__}")
        if value.dtype.name not in DTYPES:
            raise ValueError(f"an array of dtype {value.dtype} cannot be sent")
        # Through bytes: an array without elements has no memory to show.
        arrays.append(np.ascontiguousarray(value).reshape(-1).data.cast("B") if value.size else memoryview(b""))
        return msgpack.ExtType(_ARRAY, msgpack.packb((len(arrays), value.dtype.name, value.shape)))

    head = msgpack.packb(message, default=place)
    return [head, *arrays]


def unpack(frames: Sequence[bytes | memoryview]) -> dict:
    """Undo `pack`: arrays are views of the frames. Raises ProtocolError for what `pack` does not make."""

    def fetch(kind: int, body: bytes) -> np.ndarray:
        if kind != _ARRAY:
            raise ValueError(f"unknown extension type {kind}")
        at, dtype, shape = msgpack.unpackb(body)
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}")
        return np.frombuffer(frames[at], dtype).reshape(shape)

    try:
        message = msgpack.unpackb(frames[0], ext_hook=fetch)
    except (ValueError, IndexError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"malformed call: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"malformed call: {type(message).__name__}")
    return message
