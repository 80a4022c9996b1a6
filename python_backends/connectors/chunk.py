"""Chunk: the unit that travels between stages, and its wire format.

A message is one msgpack header frame followed by raw tensor frames. The header is a list with one entry a chunk, so
that everything a step produced for one destination travels as one message. Tensors below SMALL_BYTES share the first
tensor frame: a frame of its own costs more than copying a few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgpack
import numpy as np

from python_backends.config.errors import ProtocolError

KINDS = ("text_ids", "codes", "text", "audio", "progress", "abort")
DTYPES = ("int16", "int32", "int64", "uint8", "uint16", "float16", "float32")
SMALL_BYTES = 4096
_ALIGN = 8
_KINDS = frozenset(KINDS)
_NAMES = {np.dtype(name): name for name in DTYPES}
_BY_NAME = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(slots=True)
class Chunk:
    """One piece of one stream. Not to be changed once made: it may be on its way to several threads.

    `source` is the stage that made it; `seq` counts from 0 without gaps for each (stream, source, destination).
    `finished` marks the last chunk of that sequence. `error` is `(code, message)` of an OmniError, or None.
    `meta` holds plain scalars and lists; `tensors` holds contiguous NumPy arrays of a dtype in DTYPES.
    """

    stream_id: str
    source: str
    seq: int
    kind: str
    finished: bool = False
    error: tuple[str, str] | None = None
    meta: dict = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)


def encode(chunks: Sequence[Chunk]) -> list[bytes | bytearray | memoryview]:
    """Return the frames of one message. Raises ValueError for a kind or dtype that the format does not have."""
    headers, small, large = [], bytearray(), []
    for chunk in chunks:
        if chunk.kind not in _KINDS:
            raise ValueError(f"unknown chunk kind {chunk.kind!r}")
        specs = []
        for name, array in chunk.tensors.items():
            dtype = _NAMES.get(array.dtype)
            if dtype is None:
                raise ValueError(f"tensor {name!r} has dtype {array.dtype}, which the data plane does not carry")
            if array.nbytes < SMALL_BYTES:
                specs.append((name, dtype, array.shape, 0, len(small)))
                small += array.tobytes()
                small += bytes(-len(small) % _ALIGN)
            else:
                large.append(memoryview(np.ascontiguousarray(array)).cast("B"))
                specs.append((name, dtype, array.shape, len(large), 0))
        headers.append(
            (chunk.stream_id, chunk.source, chunk.seq, chunk.kind, chunk.finished, chunk.error, chunk.meta, specs)
        )
    return [msgpack.packb(headers), small, *large]


def decode(frames: Sequence[bytes | memoryview]) -> list[Chunk]:
    """Parse the frames of one message; tensors are read-only views of the frames.

    Raises ProtocolError for anything that `encode` does not make.
    """
    try:
        chunks, named = [], 0
        tensor_frames = frames[1:]
        for stream_id, source, seq, kind, finished, error, meta, specs in msgpack.unpackb(frames[0]):
            if kind not in _KINDS:
                raise ValueError(f"unknown kind {kind!r}")
            tensors = {}
            for name, dtype, shape, frame, offset in specs:
                tensors[name] = np.ndarray(shape, _BY_NAME[dtype], tensor_frames[frame], offset)
                named += frame > 0
            chunks.append(
                Chunk(
                    stream_id, source, seq, kind, finished, tuple(error) if error is not None else None, meta, tensors
                )
            )
        if len(tensor_frames) != 1 + named:
            raise ValueError(f"{len(tensor_frames)} tensor frames where the header names {named}")
    except (ValueError, KeyError, IndexError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"malformed message: {error}") from error
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
