"""A sink that records and checks the contract: prompt first and once, one end, nothing after it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from python_backends.config.errors import OmniError
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.config.stage import Finish


@dataclass
class Answer:
    prompt_ids: list[int] | None = None
    multimodal: MultimodalPrompt | None = None
    ids: list[int] = field(default_factory=list)
    deltas: list[str] = field(default_factory=list)
    logprobs: list[dict] = field(default_factory=list)
    finish: Finish | None = None
    error: OmniError | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    moved: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        return "".join(self.deltas)


class Recorder:
    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._lock = threading.Lock()
        self.violations: list[str] = []

    def __getitem__(self, stream_id: str) -> Answer:
        with self._lock:
            return self._answers.setdefault(stream_id, Answer())

    def wait(self, stream_id: str, timeout: float = 60.0) -> Answer:
        answer = self[stream_id]
        assert answer.ended.wait(timeout), f"{stream_id} did not end within {timeout} s"
        if answer.error is not None:
            raise answer.error
        return answer

    def prompt(self, stream_id: str, prompt_ids: np.ndarray, multimodal: MultimodalPrompt | None) -> None:
        answer = self._open(stream_id)
        if answer.prompt_ids is not None or answer.ids or prompt_ids.dtype != np.int32:
            self.violations.append(f"{stream_id}: prompt twice, late or of the wrong type")
        answer.prompt_ids = prompt_ids.tolist()
        answer.multimodal = multimodal

    def output(
        self, stream_id: str, ids: np.ndarray, text: str, finish: Finish | None, logprobs: list[dict] | None = None
    ) -> None:
        answer = self._open(stream_id)
        if answer.prompt_ids is None or ids.dtype != np.int32 or not (ids.size or text or finish):
            self.violations.append(f"{stream_id}: ids before the prompt, of the wrong type or none")
        answer.ids += ids.tolist()
        answer.deltas.append(text)
        answer.logprobs += logprobs or []
        answer.moved.set()
        if finish is not None:
            answer.finish = finish
            answer.ended.set()

    def failed(self, stream_id: str, error: OmniError) -> None:
        answer = self._open(stream_id)
        answer.error = error
        answer.ended.set()

    def _open(self, stream_id: str) -> Answer:
        answer = self[stream_id]
        if answer.ended.is_set():
            self.violations.append(f"{stream_id}: a call after the end")
        return answer
