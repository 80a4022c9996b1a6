"""Frames sampled from a video by their time, and its sound track."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.audio import sound_track
from python_backends.thinker.media.decoding import Clock, first_stream, open_container
from python_backends.thinker.media.frames import Sampling
from python_backends.thinker.media.image import check_size
from python_backends.thinker.media.options import MediaOptions

# Matroska and FLV write times in whole milliseconds.
_TIME_ERROR = 1.5e-3


@dataclass(frozen=True)
class Video:
    """`frames` uint8 [t, height, width, 3]; `fps` their rate; `sound` float32 [n] at 16 kHz or None."""

    frames: np.ndarray
    fps: float
    sound: np.ndarray | None = None


@dataclass(frozen=True)
class _Timeline:
    """When the frames of a film are shown. Headers are not asked: they are guesses, and growing files have none.

    `times` float64 [n], ascending, on the container's clock; `stamped`: frames carry them, else the n-th shown has the
    n-th. `seconds`: from the first one to the end of the last.
    """

    times: np.ndarray
    seconds: float
    stamped: bool

    @property
    def start(self) -> float:
        return float(self.times[0])

    @property
    def most_frames(self) -> int:
        """How many frames the film would have if all were as short as its shortest."""
        steps = np.diff(self.times)
        steps = steps[steps > _TIME_ERROR]
        return max(len(self.times), round(self.seconds / steps.min())) if steps.size else len(self.times)


def decode_video(data: bytes, field: str, sampling: Sampling, options: MediaOptions) -> Video:
    """Frames upright, and with `sampling.with_sound` the sound track if there is one.

    Raises InvalidRequest on `field`.
    """
    import av

    clock = Clock(field, options.decode_seconds)
    try:
        timeline, size = _timeline(data, field, options, clock)
        sound, lead = None, 0.0
        if sampling.with_sound:
            with open_container(data, field, "video") as container:
                if first_stream(container, "audio", field) is not None:
                    # A film begins with what comes first, its pictures or its sound; the other follows in its time.
                    sound, lead = sound_track(container, timeline.start, field, options, clock)
                else:
                    sampling = replace(sampling, with_sound=False)
        seconds = timeline.seconds + lead
        _check_seconds(seconds, field, options)
        times, fps = sampling.plan(seconds, timeline.most_frames, field, options)
        if min(size) > 0:
            # As the header has it: before anything is decoded.
            _check_pixels(*size, len(times), field, options)
        frames = _shown_at(times + (timeline.start - lead), data, timeline, field, options, clock)
    except av.FFmpegError:
        raise InvalidRequest(field, "is damaged") from None
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
    indices, fps = sampling.plan_tensor(len(frames), field, options)
    # A copy in any case: the processor takes writable memory, and what came by a socket is not.
    return Video(frames[indices], fps)


def _timeline(data: bytes, field: str, options: MediaOptions, clock: Clock) -> tuple[_Timeline, tuple[int, int]]:
    """Read from the packets: nothing is decoded. With it width and height, as the header tells them."""
    import av

    times, ends, order, count = [], [], [], 0
    with open_container(data, field, "video") as container:
        stream = first_stream(container, "video", field)
        if stream is None:
            raise InvalidRequest(field, "has no video stream")
        _check_seconds(container.duration / av.time_base if container.duration else 0.0, field, options)
        rate = float(stream.average_rate or stream.guessed_rate or 0) or 1.0
        size = stream.codec_context.width, stream.codec_context.height
        # AVI has an order of packets alone: FFmpeg's times of presentation are guesses, wrong for H.264's B-frames.
        timeless = container.format.name == "avi"
        try:
            for packet in container.demux(stream):
                clock.check()
                if not packet.size or packet.is_discard or packet.is_corrupt:
                    continue
                count += 1
                if packet.dts is not None:
                    order.append(float(packet.dts * packet.time_base))
                if packet.pts is not None:
                    times.append(float(packet.pts * packet.time_base))
                    ends.append(times[-1] + float((packet.duration or 0) * packet.time_base))
        except av.FFmpegError:
            # The end is missing: what came before it is a film too.
            pass
    if not count:
        raise InvalidRequest(field, "holds no frame")
    stamped = len(times) == count and not timeless
    if not stamped:
        # Empty packets, which say that the last frame is shown on, have their place in the order too.
        times = order if len(order) == count else (np.arange(count) / rate).tolist()
        ends = [time + 1 / rate for time in times]
    shown = np.sort(np.array(times))
    span = float(shown[-1] - shown[0])
    # The last frame lasts as long as the others do on average, unless the file says how long.
    usual = span / (count - 1) if span else 1 / rate
    end = max(ends)
    seconds = float(end if end > shown[-1] else shown[-1] + usual) - float(shown[0])
    return _Timeline(shown, seconds, stamped), size


def _shown_at(
    times: np.ndarray, data: bytes, timeline: _Timeline, field: str, options: MediaOptions, clock: Clock
) -> np.ndarray:
    """Frames uint8 [t, height, width, 3] that a player shows at `times`, ascending, on the container's clock."""
    shown: list[np.ndarray] = []
    matrix = None
    for frame, until in _with_ends(data, timeline, field, clock):
        # Where the stream carries it, and not the container, it stands at some frames and holds for those that follow.
        found = frame.side_data.get("DISPLAYMATRIX")
        matrix = bytes(found) if found is not None else matrix
        due = int(np.searchsorted(times, until - _TIME_ERROR)) - len(shown)
        if due > 0:
            _check_pixels(frame.width, frame.height, len(times), field, options)
            pixels = _upright(frame.to_ndarray(format="rgb24"), matrix)
            if shown and pixels.shape != shown[0].shape:
                raise InvalidRequest(field, "changes its frame size")
            shown += [pixels] * due
        if len(shown) == len(times):
            break
    if not shown:
        raise InvalidRequest(field, "holds no frame")
    return np.stack(shown)


def _with_ends(data: bytes, timeline: _Timeline, field: str, clock: Clock):
    """The frames in the order in which they are shown, each with the time at which the next one follows."""
    before = None
    with open_container(data, field, "video") as container:
        for number, frame in enumerate(_decoded(container, field)):
            clock.check()
            time = frame.time if timeline.stamped else timeline.times[min(number, len(timeline.times) - 1)]
            if before is not None:
                yield before, time if time is not None else -np.inf
            before = frame
    if before is not None:
        yield before, np.inf


def _decoded(container, field: str):
    """Frames, without what a cut file ends in."""
    import av

    packets = container.demux(first_stream(container, "video", field))
    while True:
        try:
            packet = next(packets, None)
        except av.FFmpegError:
            packet = None
        if packet is None:
            break
        if not packet.is_corrupt:
            yield from packet.decode()


def _upright(pixels: np.ndarray, matrix: bytes | None) -> np.ndarray:
    """[height, width, 3], turned and mirrored as FFmpeg's display matrix says, in steps of 90 degrees."""
    if matrix is None:
        return pixels
    # A pixel at (x, y) is shown at (a x + c y, b x + d y).
    a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
    if abs(a) + abs(d) < abs(b) + abs(c):
        pixels, a, d = pixels.transpose(1, 0, 2), c, b
    return np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])


def _check_seconds(seconds: float, field: str, options: MediaOptions) -> None:
    if seconds > options.max_video_seconds:
        raise InvalidRequest(field, f"is longer than {options.max_video_seconds:g} s")


def _check_pixels(width: int, height: int, frames: int, field: str, options: MediaOptions) -> None:
    check_size(width, height, field, options)
    if width * height * frames > options.max_video_pixels:
        limit = options.max_video_pixels
        raise InvalidRequest(field, f"{frames} frames of {width} x {height} pixels are more than {limit} pixels")
