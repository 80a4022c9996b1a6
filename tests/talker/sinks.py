"""Test doubles that record what an engine says."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field

import numpy as np

from python_backends.config.errors import OmniError
from python_backends.config.stage import Finish


@dataclass
class Recorded:
    """All that a sink got for one stream."""

    chunks: list[np.ndarray] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    errors: list[OmniError] = field(default_factory=list)

    @property
    def ends(self) -> int:
        return len(self.finishes) + len(self.errors)

    @property
    def codes(self) -> np.ndarray:
        return np.concatenate(self.chunks) if self.chunks else np.empty((0, 16), np.int32)

    @property
    def digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.codes, dtype="<i4").tobytes()).hexdigest()


class RecordingSink:
    """Keeps everything per stream, and insists that nothing follows an end."""

    def __init__(self) -> None:
        self.streams: dict[str, Recorded] = {}
        self.lock = threading.Lock()
        self.late: list[str] = []

    def of(self, stream_id: str) -> Recorded:
        with self.lock:
            return self.streams.setdefault(stream_id, Recorded())

    def _open(self, stream_id: str) -> Recorded:
        record = self.of(stream_id)
        if record.ends:
            self.late.append(stream_id)
        return record

    def codes(self, stream_id: str, codes: np.ndarray, finish: Finish | None) -> None:
        record = self._open(stream_id)
        assert codes.dtype == np.int32 and codes.ndim == 2
        record.chunks.append(codes)
        if finish is not None:
            record.finishes.append(finish)

    def failed(self, stream_id: str, error: OmniError) -> None:
        self._open(stream_id).errors.append(error)


def drain(engine, sink: RecordingSink, stream_ids: list[str], idle: int = 100) -> None:
    """Step until every stream has ended; fail once the engine had nothing to do `idle` times, 0.1 s each."""
    while idle:
        if not engine.step():
            engine.join()
            if all(sink.of(stream_id).ends for stream_id in stream_ids):
                return
            engine.wait_for_work(0.1)
            idle -= 1
    raise AssertionError(f"still open: {[stream_id for stream_id in stream_ids if not sink.of(stream_id).ends]}")
