"""Chunk: the unit that travels between stages, and its wire format.

A message is one msgpack header frame followed by raw tensor frames. The header is a list, one map a chunk, so that
everything a step produced for one destination travels as one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgpack
import numpy as np

from python_backends.config.errors import ProtocolError

KINDS = ("text_ids", "hidden_rows", "codes", "text", "audio", "progress", "abort")
DTYPES = ("int16", "int32", "int64", "uint8", "uint16", "float16", "float32")


@dataclass(frozen=True)
class Chunk:
    """One piece of one stream.

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


def encode(chunks: Sequence[Chunk]) -> list[bytes | memoryview]:
    """Return the frames of one message. Raises ValueError for a kind or dtype that the format does not have."""
    headers, frames = [], []
    for chunk in chunks:
        if chunk.kind not in KINDS:
            raise ValueError(f"unknown chunk kind {chunk.kind!r}")
        specs = []
        for name, array in chunk.tensors.items():
            if array.dtype.name not in DTYPES:
                raise ValueError(f"tensor {name!r} has dtype {array.dtype}, which the data plane does not carry")
            specs.append((name, array.dtype.name, array.shape))
            # An empty array has no buffer that memoryview can flatten.
            frames.append(memoryview(np.ascontiguousarray(array)).cast("B") if array.size else b"")
        headers.append(
            {
                "id": chunk.stream_id,
                "src": chunk.source,
                "seq": chunk.seq,
                "kind": chunk.kind,
                "fin": chunk.finished,
                "err": chunk.error,
                "meta": chunk.meta,
                "tensors": specs,
            }
        )
    return [msgpack.packb(headers), *frames]


def decode(frames: Sequence[bytes | memoryview]) -> list[Chunk]:
    """Parse the frames of one message; tensors are read-only views of the frames.

    Raises ProtocolError for anything that `encode` does not make.
    """
    try:
        headers = msgpack.unpackb(frames[0])
        chunks, at = [], 1
        for header in headers:
            if header["kind"] not in KINDS:
                raise ValueError(f"unknown kind {header['kind']!r}")
            tensors = {}
            for name, dtype, shape in header["tensors"]:
                if dtype not in DTYPES:
                    raise ValueError(f"unknown dtype {dtype!r}")
                tensors[name] = np.frombuffer(frames[at], dtype=dtype).reshape(shape)
                at += 1
            error = tuple(header["err"]) if header["err"] is not None else None
            chunks.append(
                Chunk(
                    header["id"], header["src"], header["seq"], header["kind"],
                    header["fin"], error, header["meta"], tensors,
                )
            )  # fmt: skip
        if at != len(frames):
            raise ValueError(f"{len(frames)} frames where the header names {at}")
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
