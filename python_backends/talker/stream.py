"""One stream's life on the host, shared by the engine thread, the builder and the callers of `feed` and `abort`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from python_backends.talker.model.shapes import TokenIds
from python_backends.talker.prompt import TalkerPrompt
from python_backends.talker.request import TalkerRequest


@dataclass(eq=False)
class TalkerStream:
    """`texts`, `text_finished`, `prompt`, `slot`, `prefilled` and `launched` belong to the engine thread.

    `frames`, `pending`, `chunks` and the chunk sizes belong to the builder. `lock` is held across sink calls of this
    stream, so that none starts once `closed` has been set. `ended` tells the engine that no further frame counts.
    """

    request: TalkerRequest
    seed: int
    speaker_code: int
    prompt: TalkerPrompt | None = None
    texts: list[int] = field(default_factory=list)
    text_finished: bool = False
    slot: int | None = None
    prefilled: int = 0
    launched: int = 0
    limit: int = 0

    frames: int = 0
    pending: list[np.ndarray] = field(default_factory=list)
    chunks: int = 0
    ending: str | None = None
    ended: bool = False
    closed: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    got_prompt: bool = False
    got_end: bool = False

    def __post_init__(self) -> None:
        self._sizes: Iterator[int] = self.request.schedule.sizes()
        self.chunk_size = next(self._sizes)

    @property
    def stream_id(self) -> str:
        return self.request.stream_id

    def next_chunk(self) -> None:
        """Move on to the next size of the schedule."""
        self.chunks += 1
        self.chunk_size = next(self._sizes)

    def fit_first_chunk(self, open_streams: int) -> None:
        """Let the first chunk grow if a burst has come since its size was chosen."""
        if self.chunks == 0:
            self._sizes = self.request.schedule.under(open_streams).sizes()
            self.chunk_size = next(self._sizes)

    def prepare(self, context: int) -> None:
        """Set the frame limit: the request's own, or the rows of context that the prompt leaves."""
        self.limit = min(self.request.sampling.max_tokens, context - self.laid_out.rows)

    @property
    def empty(self) -> bool:
        """The answer has no text at all: there is nothing to say."""
        return self.text_finished and not self.texts

    @property
    def prefilling(self) -> bool:
        return self.slot is not None and self.prefilled < self.laid_out.rows

    @property
    def laid_out(self) -> TalkerPrompt:
        """The prompt of a stream that has been queued for a slot."""
        assert self.prompt is not None
        return self.prompt

    @property
    def place(self) -> int:
        """The slot of a running stream."""
        assert self.slot is not None
        return self.slot

    def next_text(self, ids: TokenIds) -> int | None:
        """Text id of the next frame: the answer's, then the end mark, then padding; None while it has not come."""
        if self.launched < len(self.texts):
            return self.texts[self.launched]
        if not self.text_finished:
            return None
        return ids.tts_eos if self.launched == len(self.texts) else ids.tts_pad
