"""Chunk: the unit that travels between stages. What goes to one destination together travels as one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from python_backends.config.errors import ProtocolError
from python_backends.connectors import wire

Kind = Literal["text_ids", "codes", "text", "audio", "progress", "abort"]
KINDS = get_args(Kind)


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """One piece of one stream. Not to be changed once made: it may be on its way to several threads.

    `source` is the stage that made it; `seq` counts from 0 without gaps for each (stream, source, destination).
    `finished` marks the last chunk of that sequence. `error` is `(code, message)` of an OmniError, or None.
    `meta` holds plain scalars and lists; `tensors` holds NumPy arrays of a dtype in wire.DTYPES.
    """

    stream_id: str
    source: str
    seq: int
    kind: Kind
    finished: bool = False
    error: tuple[str, str] | None = None
    meta: dict[str, Any] = {}
    tensors: dict[str, Any] = {}


def encode(chunks: Sequence[Chunk]) -> list[bytes | bytearray | memoryview]:
    """Return the frames of one message. Raises ValueError for a kind or dtype that the format does not have."""
    for chunk in chunks:
        if chunk.kind not in KINDS:
            raise ValueError(f"unknown chunk kind {chunk.kind!r}")
    return wire.pack(chunks)


def decode(frames: Sequence[bytes | memoryview]) -> list[Chunk]:
    """Parse the frames of one message; tensors are read-only views of the frames.

    Raises ProtocolError for anything that `encode` does not make.
    """
    chunks: list[Chunk] = wire.unpack(frames, list[Chunk])
    if not all(isinstance(tensor, np.ndarray) for chunk in chunks for tensor in chunk.tensors.values()):
        raise ProtocolError("malformed message: a tensor is no array")
    return chunks


class SequenceChecker:
    """Checks that each (stream, source) counts from 0 without gap or repeat."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, str], int] = {}

    def check(self, chunk: Chunk) -> None:
        """Raises ProtocolError when `chunk` is not the next of its sequence."""
        key = (chunk.stream_id, chunk.source)
        expected = self._next.get(key, 0)
        if chunk.seq != expected:
            what = "repeated" if chunk.seq < expected else "missing"
            raise ProtocolError(f"{what} chunk from {chunk.source}: got number {chunk.seq}, expected {expected}")
        self._next[key] = expected + 1

    def forget(self, stream_id: str, sources: Sequence[str]) -> None:
        """Drop the counters of an ended stream."""
        for source in sources:
            self._next.pop((stream_id, source), None)
