"""Three-dimensional rotary positions of a prompt, as transformers' `get_rope_index` gives them to the Talker."""

from __future__ import annotations

import numpy as np

from python_backends.config.errors import InvalidRequest
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.talker.model.shapes import TalkerShape


def audio_rows(feature_length: int, n_window: int) -> int:
    """Rows the audio encoder makes of `feature_length` mel frames (three strided convolutions per window)."""
    window = 2 * n_window
    rest = feature_length % window
    rows = (rest - 1) // 2 + 1
    rows = ((rows - 1) // 2 + 1 - 1) // 2 + 1
    return rows + feature_length // window * 13


def _line(length: int, start: float) -> np.ndarray:
    return np.broadcast_to(np.arange(length, dtype=np.float32) + np.float32(start), (3, length))


def _vision(times: np.ndarray, height: int, width: int, start: float) -> np.ndarray:
    grid = np.meshgrid(times.astype(np.float32), np.arange(height), np.arange(width), indexing="ij")
    return np.stack([axis.reshape(-1).astype(np.float32) for axis in grid]) + np.float32(start)


def _film(media: MultimodalPrompt, number: int, merge: int, shape: TalkerShape, start: float) -> np.ndarray:
    frames, height, width = (int(size) for size in _given(media.video_grid_thw)[number])
    seconds = np.float32(_given(media.video_second_per_grid)[number])
    times = np.arange(frames, dtype=np.float32) * seconds * np.float32(shape.position_id_per_seconds)
    return _vision(times, height // merge, width // merge, start)


def _given(sizes: np.ndarray | None) -> np.ndarray:
    """Raises ValueError for sizes that did not come."""
    if sizes is None:
        raise ValueError("the sizes of a medium are missing")
    return sizes


def _run_length(ids: np.ndarray, start: int) -> int:
    """How often the id at `start` stands there in a row."""
    others = np.flatnonzero(ids[start:] != ids[start])
    return int(others[0]) if len(others) else len(ids) - start


def rope_positions(ids: np.ndarray, media: MultimodalPrompt | None, shape: TalkerShape) -> tuple[np.ndarray, float]:
    """Return positions float32 [3, rows] of `ids` (int [rows]) and the delta from row index to position afterwards.

    Time, height and width differ only inside images and videos. A sound track inside a video is placed as transformers'
    `generate` places it for the Talker: interleaved while an image or a silent video is still to come, else as plain
    audio followed by text. Raises InvalidRequest when the
    grids do not fit the ids.
    """
    if media is None or not any(
        grid is not None and len(grid) for grid in (media.image_grid_thw, media.video_grid_thw)
    ):
        return _line(len(ids), 0.0).copy(), 0.0
    try:
        positions = np.concatenate(_segments(ids, media, shape), axis=1)
    except (IndexError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise InvalidRequest("multimodal", f"media sizes do not fit the prompt: {error}") from None
    if positions.shape[1] != len(ids):
        raise InvalidRequest("multimodal", f"media sizes give {positions.shape[1]} rows for {len(ids)} ids")
    if not np.isfinite(positions).all():
        raise InvalidRequest("multimodal.video_second_per_grid", "must be finite")
    return positions, float(positions.max() + np.float32(1) - np.float32(len(ids)))


def _segments(ids: np.ndarray, media: MultimodalPrompt, shape: TalkerShape) -> list[np.ndarray]:
    token = shape.ids
    tokens = ids.tolist()
    after_start = ids[np.flatnonzero(ids == token.vision_start) + 1]
    images_left = int((after_start == token.image).sum())
    videos_left = int((after_start == token.video).sum())
    audios_left = int((ids == token.audio_start).sum())
    merge = shape.spatial_merge_size
    image = video = audio = cursor = 0
    parts: list[np.ndarray] = []

    def next_start() -> float:
        return float(parts[-1].max() + 1) if parts else 0.0

    while images_left + videos_left + audios_left > 0:
        nowhere = len(tokens) + 1
        vision_at = tokens.index(token.vision_start, cursor) if images_left + videos_left else nowhere
        audio_at = tokens.index(token.audio_start, cursor) if audios_left and token.audio in tokens else nowhere
        at = min(vision_at, audio_at)
        marks = 2 if audio_at == vision_at + 1 else 1
        parts.append(_line(at - cursor + marks, next_start()))
        start = next_start()
        if marks == 2:
            sound = _line(audio_rows(int(_given(media.audio_seqlens)[audio]), shape.audio_n_window), start)
            film = _film(media, video, merge, shape, start)
            both = np.concatenate([film, sound], axis=1)
            # Of a frame and a sound at the same time the frame comes first.
            body = both[:, np.argsort(both[0], kind="stable")]
            audio, audios_left, video = audio + 1, audios_left - 1, video + 1
        elif at == audio_at:
            body = _line(audio_rows(int(_given(media.audio_seqlens)[audio]), shape.audio_n_window), start)
            audio, audios_left = audio + 1, audios_left - 1
        elif tokens[at + 1] == token.image:
            frames, height, width = (int(size) for size in _given(media.image_grid_thw)[image])
            times = np.arange(frames, dtype=np.float32) * np.float32(shape.position_id_per_seconds)
            body = _vision(times, height // merge, width // merge, start)
            image, images_left = image + 1, images_left - 1
        else:
            body = _film(media, video, merge, shape, start)
            video, videos_left = video + 1, videos_left - 1
        rows = body.shape[1]
        # The sound track of a film is interleaved with its frames.
        if not media.use_audio_in_video and _run_length(ids, at + 1) != rows:
            raise ValueError(f"{_run_length(ids, at + 1)} placeholders at {at + 1}, where the sizes give {rows}")
        parts.append(body)
        parts.append(_line(marks, next_start()))
        cursor = at + rows + 2 * marks
    if cursor < len(tokens):
        parts.append(_line(len(tokens) - cursor, next_start()))
    return parts
