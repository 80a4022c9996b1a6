"""Frames sampled from a video, and its sound track."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.audio import sound_track
from python_backends.thinker.media.av_input import open_container
from python_backends.thinker.media.clock import Clock
from python_backends.thinker.media.image import check_size
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.media.sampling import FramePlan, Sampling


@dataclass(frozen=True)
class Video:
    """`frames` uint8 [t, height, width, 3]; `fps` their rate; `sound` float32 [n] at 16 kHz or None."""

    frames: np.ndarray
    fps: float
    sound: np.ndarray | None = None


def decode_video(data: bytes, field: str, sampling: Sampling, options: MediaOptions) -> Video:
    """Frames, and with `sampling.with_sound` the sound track. Raises InvalidRequest on `field`."""
    import av

    clock = Clock(field, options.decode_seconds)
    try:
        frames, fps = _sample(data, field, sampling, options, clock)
        sound = None
        if sampling.with_sound:
            with open_container(data, field, "video") as container:
                sound = sound_track(container, field, options, clock)
    except av.FFmpegError as error:
        raise InvalidRequest(field, f"is damaged: {error}") from None
    return Video(frames, fps, sound)


def check_frames(frames: np.ndarray, field: str, sampling: Sampling, options: MediaOptions) -> None:
    """Raises InvalidRequest on `field` for raw frames that are not uint8 [t, height, width, 3], or too many.

    Frames that are not taken count too: they were sent.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not len(frames):
        raise InvalidRequest(field, f"must be uint8 [t, height, width, 3], got {frames.dtype} {list(frames.shape)}")
    sampling.frames_of_tensor(len(frames), field, options)
    _check_pixels(frames.shape[2], frames.shape[1], len(frames), field, options)


def video_from_tensor(frames: np.ndarray, field: str, sampling: Sampling, options: MediaOptions) -> Video:
    """Raw frames uint8 [t, height, width, 3]."""
    check_frames(frames, field, sampling, options)
    plan = sampling.plan_tensor(len(frames), field, options)
    # A copy in any case: the processor takes writable memory, and what came by a socket is not.
    return Video(frames[plan.indices], plan.fps)


def _sample(
    data: bytes, field: str, sampling: Sampling, options: MediaOptions, clock: Clock
) -> tuple[np.ndarray, float]:
    with open_container(data, field, "video") as container:
        if not container.streams.video:
            raise InvalidRequest(field, "has no video stream")
        stream = container.streams.video[0]
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        seconds = _seconds(container, stream)
        total = stream.frames or round(seconds * rate)
        _check_seconds(seconds, field, options)
        width, height = stream.codec_context.width, stream.codec_context.height
    if not total or not rate:
        total, seconds = _measure(data, field, options, clock)
    seconds = seconds or total / rate
    plan = sampling.plan(seconds, total, field, options)
    _check_pixels(width, height, len(plan.indices), field, options)
    frames, seen = _decode(data, field, plan, options, clock)
    if plan.indices[-1] >= seen > 0:
        # The header promised more frames than there are.
        plan = sampling.plan(seconds * seen / total, seen, field, options)
        frames, seen = _decode(data, field, plan, options, clock)
    if not seen:
        raise InvalidRequest(field, "holds no frame")
    return np.stack([frames[at] for at in plan.indices.tolist()]), plan.fps


def _decode(
    data: bytes, field: str, plan: FramePlan, options: MediaOptions, clock: Clock
) -> tuple[dict[int, np.ndarray], int]:
    """The planned frames by index, and how many frames were met until the last of them."""
    frames: dict[int, np.ndarray] = {}
    seen = 0
    wanted, last = set(plan.indices.tolist()), int(plan.indices[-1])
    with open_container(data, field, "video") as container:
        size = None
        for frame in container.decode(video=0):
            clock.check()
            size = size or (frame.width, frame.height)
            if (frame.width, frame.height) != size:
                raise InvalidRequest(field, "changes its frame size")
            if seen in wanted:
                _check_pixels(*size, len(wanted), field, options)
                frames[seen] = frame.to_ndarray(format="rgb24")
            seen += 1
            if seen > last:
                break
    return frames, seen


def _measure(data: bytes, field: str, options: MediaOptions, clock: Clock) -> tuple[int, float]:
    """Frames and seconds of a video whose header does not tell."""
    count, first, end = 0, None, 0.0
    with open_container(data, field, "video") as container:
        for frame in container.decode(video=0):
            clock.check()
            count += 1
            first = frame.time if first is None else first
            end = frame.time or end
            _check_seconds(end - (first or 0.0), field, options)
    if not count:
        raise InvalidRequest(field, "holds no frame")
    span = end - (first or 0.0)
    return count, span * count / (count - 1) if count > 1 and span > 0 else float(count)


def _seconds(container, stream) -> float:
    import av

    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else 0.0


def _check_seconds(seconds: float, field: str, options: MediaOptions) -> None:
    if seconds > options.max_video_seconds:
        raise InvalidRequest(field, f"is longer than {options.max_video_seconds:g} s")


def _check_pixels(width: int, height: int, frames: int, field: str, options: MediaOptions) -> None:
    check_size(width, height, field, options)
    if width * height * frames > options.max_video_pixels:
        limit = options.max_video_pixels
        raise InvalidRequest(field, f"{frames} frames of {width} x {height} pixels are more than {limit} pixels")
