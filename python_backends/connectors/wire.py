"""How messages lie on the wire: msgpack, with the NumPy arrays anywhere in them as raw frames behind.

Arrays below SMALL_BYTES share the first of these frames: a frame of its own costs more than copying a few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from python_backends.config.errors import ProtocolError

T = TypeVar("T")
DTYPES = ("int16", "int32", "int64", "uint8", "uint16", "float16", "float32")
SMALL_BYTES = 4096
_ALIGN = 8
_ARRAY = 1  # msgpack extension type: dtype, shape, frame and offset of an array
_NAMES = {np.dtype(name): name for name in DTYPES}
_BY_NAME = {name: dtype for dtype, name in _NAMES.items()}


def pack(message: Any) -> list[bytes | bytearray | memoryview]:
    """The frames of one message: a struct of msgspec, or what JSON has, with arrays in it.

    Raises ValueError for an array whose dtype is not in DTYPES, TypeError for what is neither.
    """
    small, large = bytearray(), []

    def place(value: Any) -> msgspec.msgpack.Ext:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"cannot be sent: {type(value).__name__}")
        dtype = _NAMES.get(value.dtype)
        if dtype is None:
            raise ValueError(f"an array of dtype {value.dtype} cannot be sent")
        if value.nbytes < SMALL_BYTES:
            spec = (dtype, value.shape, 0, len(small))
            small.extend(value.tobytes())
            small.extend(bytes(-len(small) % _ALIGN))
        else:
            large.append(np.ascontiguousarray(value).data.cast("B"))
            spec = (dtype, value.shape, len(large), 0)
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(spec))

    head = msgspec.msgpack.encode(message, enc_hook=place)
    return [head, small, *large]


def unpack(frames: Sequence[bytes | memoryview], kind: type[T] | Any = dict[str, Any]) -> T:
    """Undo `pack` of a `kind`; arrays are read-only views of the frames.

    Raises ProtocolError for what `pack` does not make of one.
    """
    large = set()

    def fetch(code: int, body: memoryview) -> np.ndarray:
        if code != _ARRAY:
            raise ValueError(f"unknown extension type {code}")
        dtype, shape, frame, offset = msgspec.msgpack.decode(body)
        large.add(frame)
        if offset < 0:  # NumPy would read in front of the frame
            raise ValueError(f"offset {offset}")
        return np.ndarray(shape, _BY_NAME[dtype], arrays[frame], offset)

    try:
        head, *arrays = frames
        message = msgspec.msgpack.decode(head, type=kind, ext_hook=fetch)
        if len(arrays) != 1 + len(large - {0}):
            raise ValueError(f"{len(arrays)} frames with arrays where {1 + len(large - {0})} are named")
        return message
    except (msgspec.MsgspecError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ProtocolError(f"malformed message: {error}") from None
