"""What the Thinker tells the Talker about a prompt that holds audio, images or video."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class MultimodalPrompt:
    """Hidden rows and shapes of a prompt's media, beside its expanded ids.

    - `positions` int64 [m]: ascending indices into the prompt ids of all audio, image and video placeholders.
    - `hidden_rows` float32 [m, hidden]: at each of them the Thinker's residual stream after layer
      `accept_hidden_layer` (`hidden_states[accept_hidden_layer]` of `transformers`); bfloat16 values are widened.
    - `image_grid_thw`, `video_grid_thw` int64 [n, 3]: patches in time, height and width before merging, or None.
    - `audio_seqlens` int64 [n]: mel frames of each audio, sound tracks of videos included, in the order of the prompt,
      or None.
    - `video_second_per_grid` float32 [n]: seconds between two temporal patches of each video, or None.
    - `use_audio_in_video`: sound tracks are interleaved with their video's patches.
    """

    positions: np.ndarray
    hidden_rows: np.ndarray
    image_grid_thw: np.ndarray | None = None
    video_grid_thw: np.ndarray | None = None
    audio_seqlens: np.ndarray | None = None
    video_second_per_grid: np.ndarray | None = None
    use_audio_in_video: bool = False

    def pack(self) -> tuple[dict, dict[str, np.ndarray]]:
        """The prompt as a chunk's metadata and tensors; fields that are None are left out."""
        meta, tensors = {}, {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                tensors[item.name] = value
            elif value is not None:
                meta[item.name] = value
        return meta, tensors

    @classmethod
    def unpack(cls, meta: dict, tensors: dict[str, np.ndarray]) -> MultimodalPrompt | None:
        """Undo `pack`; None when the chunk carries no multimodal prompt."""
        if "positions" not in tensors:
            return None
        names = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in (meta | tensors).items() if name in names})
