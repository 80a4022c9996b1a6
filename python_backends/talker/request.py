"""What travels into and out of the Talker engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from python_backends.config.errors import OmniError
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule, Finish


@dataclass(frozen=True)
class TalkerRequest:
    """One stream of speech. `seed`: 0 to 2**64 - 1, or None to have one drawn and reported in `Finish.usage`."""

    stream_id: str
    speaker: str = "ethan"
    sampling: TalkerSampling = field(default_factory=TalkerSampling)
    seed: int | None = None
    schedule: ChunkSchedule = field(default_factory=ChunkSchedule)


@dataclass(frozen=True)
class TextChunk:
    """New answer ids (int32 [n], without the end-of-text id); the first chunk also brings the prompt.

    `prompt_ids` int32 [p] with every placeholder expanded. `finished`: no id follows.
    """

    ids: np.ndarray
    finished: bool = False
    prompt_ids: np.ndarray | None = None
    multimodal: MultimodalPrompt | None = None


class TalkerSink(Protocol):
    """Where results go. Calls come from one thread: the builder's, or the engine's on the synchronous path.

    A call may block, which holds up the streams of this engine alone. It must not wait for an `abort` of its own
    stream.
    """

    def codes(self, stream_id: str, codes: np.ndarray, finish: Finish | None) -> None:
        """Take int32 [frames, groups]; `finish` comes with the last chunk, which may be empty."""

    def failed(self, stream_id: str, error: OmniError) -> None:
        """Learn that the stream ended with an error."""
