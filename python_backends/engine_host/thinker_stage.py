"""The Thinker on the data plane: text to the BLS model, prompt and ids to the Talker."""

from __future__ import annotations

import threading

import numpy as np

from python_backends.config.errors import OmniError
from python_backends.config.media_inputs import split_media
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.config.sampling import ThinkerSampling
from python_backends.config.stage import Finish
from python_backends.connectors.chunk import Chunk
from python_backends.engine_host.streams import Streams
from python_backends.thinker.engine import ThinkerEngine, ThinkerOptions, ThinkerRequest


class ThinkerStage:
    """Adapter between ThinkerEngine and the data plane; it is the engine's sink."""

    def __init__(self, options: ThinkerOptions, streams: Streams) -> None:
        self._streams = streams
        self._held: dict[str, list[np.ndarray]] = {}
        self._engine = ThinkerEngine(options, self)

    def open(self, payload: dict) -> dict:
        request = ThinkerRequest(
            stream_id=payload["stream_id"],
            messages=payload["messages"],
            sampling=ThinkerSampling(**payload["sampling"]),
            seed=payload["seed"],
            speak=payload["sink"] is not None,
            media=split_media(payload.get("media", {})),
            template=payload.get("template", {}),
            speech_rows=payload.get("speech_rows"),
        )
        self._streams.open(request.stream_id, payload["reply"], payload["sink"])
        if payload.get("hold_ids"):
            self._held[request.stream_id] = []
        try:
            self._engine.add(request)
        except BaseException:
            self._held.pop(request.stream_id, None)
            self._streams.drop(request.stream_id)
            raise
        return {}

    def receive(self, chunk: Chunk) -> None:
        """The Thinker is the first stage: nothing but an abort is sent to it."""

    def prompt(self, stream_id: str, prompt_ids: np.ndarray, multimodal: MultimodalPrompt | None) -> None:
        meta, tensors = multimodal.pack() if multimodal is not None else ({}, {})
        tensors["prompt_ids"] = prompt_ids
        self._streams.post(stream_id, "text_ids", to_sink=True, meta=meta, tensors=tensors)

    def output(
        self, stream_id: str, ids: np.ndarray, text: str, finish: Finish | None, logprobs: list[dict] | None = None
    ) -> None:
        finished = finish is not None
        held = self._held.get(stream_id)
        if held is not None:
            held.append(ids)
            ids = np.concatenate(self._held.pop(stream_id, held)) if finished else ids[:0]
        if ids.size or finished:
            self._streams.post(stream_id, "text_ids", to_sink=True, finished=finished, tensors={"ids": ids})
        if text or finished or logprobs:
            meta: dict = {"text": text}
            if logprobs:
                meta["logprobs"] = logprobs
            if finish is not None:
                meta |= {"reason": finish.reason, "usage": finish.usage}
                if finish.notes:
                    meta["notes"] = list(finish.notes)
            self._streams.post(stream_id, "text", finished=finished, meta=meta)
        if finished:
            self._streams.finish(stream_id)

    def failed(self, stream_id: str, error: OmniError) -> None:
        self._held.pop(stream_id, None)
        self._streams.fail(stream_id, error)

    def abort(self, stream_id: str) -> None:
        self._held.pop(stream_id, None)
        self._engine.abort(stream_id)

    def run(self, stop: threading.Event) -> None:
        # The engine has a thread of its own that drives vLLM.
        self._engine.run_until(stop)

    def describe(self) -> dict:
        return self._engine.describe()

    def stats(self) -> dict:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.close()
