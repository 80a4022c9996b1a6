"""What travels into and out of the Thinker's engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from python_backends.config.errors import OmniError
from python_backends.config.media_inputs import MediaTensors
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.config.sampling import ThinkerSampling
from python_backends.config.stage import Finish


@dataclass(frozen=True)
class ThinkerRequest:
    """One answer to give.

    `messages`: OpenAI style, see `parse_messages`. `seed`: of the sampling noise, 0 to 2**63-1; None draws one.
    `speak`: a Talker follows, so hidden rows of media are captured. `media`: raw tensors that the messages name.
    `template`: variables of the chat template. `speech_rows`: rows of context that the Talker has, None without one.
    """

    stream_id: str
    messages: list[dict[str, Any]]
    sampling: ThinkerSampling
    seed: int | None = None
    speak: bool = True
    media: MediaTensors = field(default_factory=MediaTensors)
    template: dict[str, Any] = field(default_factory=dict)
    speech_rows: int | None = None


class ThinkerSink(Protocol):
    """Where results go. All calls come from one thread; a call that blocks delays every stream, never the model."""

    def prompt(self, stream_id: str, prompt_ids: np.ndarray, multimodal: MultimodalPrompt | None) -> None:
        """Exactly once and before any ids: int32 [p] prompt ids with media placeholders expanded."""

    def output(
        self, stream_id: str, ids: np.ndarray, text: str, finish: Finish | None, logprobs: list[dict] | None = None
    ) -> None:
        """New answer ids (int32 [n], end-of-text ids left out) and the text that they complete; see `entries_of` for
        `logprobs`. A text may come before its last id while the rest of that id's text may begin a stop string.

        `finish` comes with the last call, whose ids may be empty. Its usage: `prompt_tokens`, and `completion_tokens`,
        the number of ids delivered.
        """

    def failed(self, stream_id: str, error: OmniError) -> None:
        """The stream ended with `error`; no call follows."""
