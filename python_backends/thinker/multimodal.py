"""Decoded media into vLLM's prompt, and what the Talker must know about them out of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from python_backends.config.multimodal import MultimodalPrompt
from python_backends.thinker.film_sound import MediaIds, interleave, with_tracks
from python_backends.thinker.media.frames import TEMPORAL_PATCH
from python_backends.thinker.media.loader import LoadedMedia


@dataclass(frozen=True)
class MediaPrompt:
    """A prompt with media, ready for vLLM.

    `ids` int32 [p] with expanded placeholders, `positions` int64 [m] of those; the rest as in MultimodalPrompt.
    """

    engine_input: Any
    ids: np.ndarray
    positions: np.ndarray
    image_grid_thw: np.ndarray | None
    video_grid_thw: np.ndarray | None
    audio_seqlens: np.ndarray | None
    video_second_per_grid: np.ndarray | None
    use_audio_in_video: bool

    def with_rows(self, hidden_rows: np.ndarray) -> MultimodalPrompt:
        """`hidden_rows` float32 [m, hidden], one for each of `positions`."""
        return MultimodalPrompt(
            positions=self.positions,
            hidden_rows=hidden_rows,
            image_grid_thw=self.image_grid_thw,
            video_grid_thw=self.video_grid_thw,
            audio_seqlens=self.audio_seqlens,
            video_second_per_grid=self.video_second_per_grid,
            use_audio_in_video=self.use_audio_in_video,
        )


def build(
    renderer: Any, ids: list[int], media: LoadedMedia, media_ids: MediaIds, positions_per_second: int, salt: str
) -> MediaPrompt:
    """Run the checkpoint's processor on `media` and expand the placeholders of `ids`.

    `salt`: unique to the request. Raises ValueError for what the processor or vLLM's limits refuse.
    """
    rates = [video.fps for video in media.videos]
    heard = [video.sound is not None for video in media.videos]
    mixed = len(set(rates)) > 1
    prompt: dict[str, Any] = {
        "prompt_token_ids": with_tracks(ids, heard, media_ids),
        "multi_modal_data": {
            name: items
            for name, items in (
                ("audio", media.audios),
                ("image", media.images),
                ("video", [video.frames for video in media.videos]),
            )
            if items
        },
        # The frames are sampled already; their rate makes the time axis of the positions.
        "mm_processor_kwargs": {"fps": rates[0]} if rates else {},
    }
    if media.audios:
        prompt["multi_modal_uuids"] = {"audio": _audio_names(media.audios)}
    if mixed:
        # Processed items and cached blocks are keyed by content and arguments, which do not tell these rates apart.
        prompt["cache_salt"] = salt
    engine_input = renderer.render_cmpl([prompt])[0]
    items = engine_input["mm_kwargs"]
    if mixed:
        items["video"] = [_with_rate(item, rate) for item, rate in zip(items["video"], rates, strict=True)]
    interleave(engine_input, heard, [TEMPORAL_PATCH / rate for rate in rates], positions_per_second, media_ids)
    expanded = np.asarray(engine_input["prompt_token_ids"], dtype=np.int32)
    return MediaPrompt(
        engine_input=engine_input,
        ids=expanded,
        positions=np.flatnonzero(np.isin(expanded, media_ids.placeholders)),
        image_grid_thw=_stacked(items, "image", "image_grid_thw", (-1, 3)),
        video_grid_thw=_stacked(items, "video", "video_grid_thw", (-1, 3)),
        audio_seqlens=_stacked(items, "audio", "audio_feature_lengths", (-1,)),
        video_second_per_grid=np.array([TEMPORAL_PATCH / rate for rate in rates], np.float32) if rates else None,
        use_audio_in_video=any(heard),
    )


def _audio_names(audios: list[np.ndarray]) -> list[str]:
    """Keys of the encoder's cache.

    The processor pads the audios of a request to the longest, which changes the last mel frames of the others: so the
    longest is part of the key.
    """
    longest = max(len(samples) for samples in audios)
    return [f"{hashlib.sha256(samples.tobytes()).hexdigest()}-{longest}" for samples in audios]


def _with_rate(item: Any, rate: float) -> Any:
    name = "second_per_grid_ts"
    seconds = torch.as_tensor(TEMPORAL_PATCH / rate, dtype=torch.float32)
    return type(item)({**item, name: replace(item[name], data=seconds)})


def _stacked(items: Any, kind: str, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    found = items.get(kind)
    if not found:
        return None
    return np.stack([np.asarray(item[name].data) for item in found]).astype(np.int64).reshape(shape)
