"""What travels into and out of the Talker engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from python_backends.config.errors import OmniError
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
class MultimodalPrompt:
    """Media rows of a prompt, from the Thinker.

    `positions` int [m]: indices into `prompt_ids`. `hidden_rows` float [m, thinker_hidden]: the Thinker's hidden state
    after layer `accept_hidden_layer`. The grids (int [k, 3]), `audio_seqlens` (feature lengths, int [a]) and
    `video_second_per_grid` (float [v]) are those that the processor gave the Thinker.
    """

    positions: np.ndarray
    hidden_rows: np.ndarray
    image_grid_thw: np.ndarray | None = None
    video_grid_thw: np.ndarray | None = None
    audio_seqlens: np.ndarray | None = None
    video_second_per_grid: np.ndarray | None = None
    use_audio_in_video: bool = False


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

    A call must not wait for an `abort` of its own stream. A sink may also have `ready(stream_id) -> bool`; False
    pauses that stream's row until it turns True.
    """

    def codes(self, stream_id: str, codes: np.ndarray, finish: Finish | None) -> None:
        """Take int32 [frames, groups]; `finish` comes with the last chunk, which may be empty."""

    def progress(self, stream_id: str, frames: int) -> None:
        """Learn how many frames have been sampled so far."""

    def failed(self, stream_id: str, error: OmniError) -> None:
        """Learn that the stream ended with an error."""
