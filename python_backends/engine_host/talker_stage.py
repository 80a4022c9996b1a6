"""The Talker on the data plane: text ids in, codes out to Code2Wav, progress to the BLS model."""

from __future__ import annotations

import threading

import numpy as np

from python_backends.config.errors import OmniError, StageFailed
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule, Finish
from python_backends.connectors.chunk import Chunk
from python_backends.engine_host.stage import run_stepping_engine
from python_backends.engine_host.streams import Streams
from python_backends.talker.engine import TalkerEngine, TalkerOptions, TalkerRequest, TextChunk


class TalkerStage:
    """Adapter between TalkerEngine and the data plane; it is the engine's sink."""

    def __init__(self, checkpoint: str, options: TalkerOptions, streams: Streams) -> None:
        self._streams = streams
        self._engine = TalkerEngine(checkpoint, options, self)

    def open(self, payload: dict) -> dict:
        request = TalkerRequest(
            stream_id=payload["stream_id"],
            speaker=payload["speaker"],
            sampling=TalkerSampling(**payload["sampling"]),
            seed=payload["seed"],
            schedule=ChunkSchedule(**payload["schedule"]),
        )
        self._streams.open(request.stream_id, payload["reply"], payload["sink"])
        try:
            self._engine.add(request)
        except BaseException:
            self._streams.drop(request.stream_id)
            raise
        return {"rows": self._engine.max_model_len}

    def receive(self, chunk: Chunk) -> None:
        prompt_ids = chunk.tensors.get("prompt_ids")
        multimodal = MultimodalPrompt.unpack(chunk.meta, chunk.tensors)
        ids = chunk.tensors.get("ids", np.empty(0, np.int32))
        self._engine.feed(chunk.stream_id, TextChunk(ids, chunk.finished, prompt_ids, multimodal))

    def codes(self, stream_id: str, codes: np.ndarray, finish: Finish | None) -> None:
        self._streams.post(stream_id, "codes", to_sink=True, finished=finish is not None, tensors={"codes": codes})
        if finish is not None:
            meta = {"reason": finish.reason, "usage": finish.usage}
            self._streams.post(stream_id, "progress", finished=True, meta=meta)
            self._streams.finish(stream_id)

    def failed(self, stream_id: str, error: OmniError) -> None:
        self._streams.fail(stream_id, error)

    def abort(self, stream_id: str) -> None:
        self._engine.abort(stream_id)

    def run(self, stop: threading.Event) -> None:
        run_stepping_engine(self._engine, stop, self._fail_all)

    def _fail_all(self, why: str) -> None:
        for stream_id in self._streams.ids():
            self._streams.fail(stream_id, StageFailed(f"talker: {why}"))

    def describe(self) -> dict:
        return self._engine.describe()

    def stats(self) -> dict:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.close()
