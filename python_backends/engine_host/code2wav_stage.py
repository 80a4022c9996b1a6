"""Code2Wav on the data plane: codes in, audio out to the BLS model."""

from __future__ import annotations

import threading

import numpy as np

from python_backends.code2wav.engine import Code2WavEngine, Code2WavOptions, Code2WavRequest
from python_backends.config.errors import OmniError, StageFailed
from python_backends.config.stage import Finish
from python_backends.connectors.chunk import Chunk
from python_backends.engine_host.stage import run_stepping_engine
from python_backends.engine_host.streams import Streams


class Code2WavStage:
    """Adapter between Code2WavEngine and the data plane; it is the engine's sink."""

    def __init__(self, checkpoint: str, options: Code2WavOptions, streams: Streams) -> None:
        self._streams = streams
        self._engine = Code2WavEngine(checkpoint, options, self)

    def open(self, payload: dict) -> dict:
        self._streams.open(payload["stream_id"], payload["reply"], None)
        try:
            self._engine.add(Code2WavRequest(payload["stream_id"], payload.get("sample_format", "float32")))
        except BaseException:
            self._streams.drop(payload["stream_id"])
            raise
        return {}

    def receive(self, chunk: Chunk) -> None:
        self._engine.feed(chunk.stream_id, chunk.tensors["codes"], chunk.finished)

    def audio(self, stream_id: str, samples: np.ndarray, finish: Finish | None) -> None:
        meta = {"reason": finish.reason, "usage": finish.usage} if finish else None
        self._streams.post(stream_id, "audio", finished=finish is not None, meta=meta, tensors={"audio": samples})
        if finish is not None:
            self._streams.finish(stream_id)

    def failed(self, stream_id: str, error: OmniError) -> None:
        self._streams.fail(stream_id, error)

    def abort(self, stream_id: str) -> None:
        self._engine.abort(stream_id)

    def run(self, stop: threading.Event) -> None:
        run_stepping_engine(self._engine, stop, self._fail_all)

    def _fail_all(self, why: str) -> None:
        for stream_id in self._streams.ids():
            self._streams.fail(stream_id, StageFailed(f"code2wav: {why}"))

    def describe(self) -> dict:
        return self._engine.describe()

    def stats(self) -> dict:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.close()
