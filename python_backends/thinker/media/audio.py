"""Audio of any common format as mono float32 samples at 16 kHz: the mean of its channels, whoever decodes it."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator

import numpy as np

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.decoding import Clock, first_stream, open_container
from python_backends.thinker.media.options import MediaOptions

RATE = 16000
# The audio tower's mel frames are 10 ms: whole frames mean the same to every version of the feature extractor.
HOP = 160
# It works on chunks of a second. A sound that is shorter gets an edge that depends on the other sounds which happen to
# be encoded beside it, so it is filled up with silence.
SHORTEST = RATE
# A resampler's filters grow with the ratio of the rates: a wrong one in a file's header would take gigabytes.
LOWEST_RATE, HIGHEST_RATE = 1000, 384_000

# What libsndfile says is this or near it where a header says nothing.
_UNKNOWN_FRAMES = 1 << 62

# Mono samples float32 [n], and their rate in Hz.
Blocks = Iterator[tuple[np.ndarray, int]]


def decode_audio(data: bytes, field: str, options: MediaOptions) -> np.ndarray:
    """Samples float32 [n] at 16 kHz, n at least 16000 and a multiple of 160. Raises InvalidRequest on `field`.

    Of a film, the sound track from the film's start on: one that begins later follows silence.
    """
    clock = Clock(field, options.decode_seconds)
    file = _sound_file(data)
    if file is not None:
        with file:
            _check_rate(file.samplerate, field)
            _check_seconds(file.frames / file.samplerate, field, options)
            return _collect(_resampled(_blocks(file, field), clock), field, options)
    with open_container(data, field, "audio") as container:
        if first_stream(container, "audio", field) is None:
            raise InvalidRequest(field, "has no sound track")
        film = first_stream(container, "video", field)
        known = film is not None and film.start_time is not None
        start = float(film.start_time * film.time_base) if known else None
        return sound_track(container, start, field, options, clock)[0]


def _sound_file(data: bytes):
    """None for what soundfile cannot read: other formats, and files whose header does not tell their length, such as
    FLAC from a pipe and WAV whose writer was stopped.
    """
    import soundfile

    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except soundfile.SoundFileError:
        return None
    if 0 < file.frames < _UNKNOWN_FRAMES:
        return file
    file.close()
    return None


def sound_track(
    container, film_start: float | None, field: str, options: MediaOptions, clock: Clock
) -> tuple[np.ndarray, float]:
    """The first audio stream of an open PyAV container, as `decode_audio`, and by how many seconds it is ahead of the
    film's pictures.

    `film_start`: seconds on the container's clock at which those begin; None when there are none.
    """
    import av

    if container.duration:
        _check_seconds(container.duration / av.time_base, field, options)
    try:
        frames = container.decode(audio=0)
        first = next(frames, None)
        late = 0.0
        if first is not None and first.time is not None and film_start is not None:
            late = first.time - film_start
            _check_seconds(late, field, options)
        blocks = _decoded(itertools.chain([first] if first is not None else [], frames), max(0.0, late), field)
        return _collect(_resampled(blocks, clock), field, options), max(0.0, -late)
    except av.FFmpegError:
        raise InvalidRequest(field, "is damaged") from None


def check_samples(samples: np.ndarray, rate: int, field: str, options: MediaOptions) -> None:
    """Raises InvalidRequest on `field` for raw samples that `samples_from_tensor` would refuse by their size."""
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise InvalidRequest(field, f"must be floating-point samples [n], got {samples.dtype} {list(samples.shape)}")
    _check_rate(rate, field)
    _check_seconds(samples.size / rate, field, options)


def samples_from_tensor(samples: np.ndarray, rate: int, field: str, options: MediaOptions) -> np.ndarray:
    """Raw mono samples float [n] at `rate` Hz, as `decode_audio`."""
    check_samples(samples, rate, field, options)
    clock = Clock(field, options.decode_seconds)
    return _collect(_resampled(iter([(samples.astype(np.float32), rate)]), clock), field, options)


def _blocks(file, field: str) -> Blocks:
    import soundfile

    try:
        while len(block := file.read(frames=10 * file.samplerate, dtype="float32", always_2d=True)):
            yield _mono(block.T), file.samplerate
    except soundfile.SoundFileError:
        raise InvalidRequest(field, "is damaged") from None


def _decoded(frames: Iterator, late: float, field: str) -> Blocks:
    """After `late` seconds of silence."""
    for number, frame in enumerate(frames):
        rate = frame.sample_rate
        _check_rate(rate, field)
        if number == 0:
            yield np.zeros(round(late * rate), np.float32), rate
        yield _samples(frame), rate


def _samples(frame) -> np.ndarray:
    """The mean of a PyAV frame's channels. FFmpeg's own mix to mono weighs them, and not to a sum of one."""
    if frame.format.name.startswith("s64"):
        # NumPy gets no such frames from PyAV. To another format alone, FFmpeg mixes nothing.
        import av

        (frame,) = av.AudioResampler(format="dblp", layout=frame.layout, rate=frame.sample_rate).resample(frame)
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    if samples.dtype.kind == "u":
        samples = (samples.astype(np.float32) - 128) / 128
    elif samples.dtype.kind == "i":
        samples = samples.astype(np.float32) / 2 ** (8 * samples.dtype.itemsize - 1)
    return _mono(samples)


def _mono(channels: np.ndarray) -> np.ndarray:
    """[channels, n] to float32 [n]."""
    return channels[0].astype(np.float32) if len(channels) == 1 else channels.mean(axis=0, dtype=np.float32)


def _resampled(blocks: Blocks, clock: Clock) -> Iterator[np.ndarray]:
    import av

    resampler, resampled_rate = None, RATE

    def flushed() -> Iterator[np.ndarray]:
        if resampler is not None:
            yield from (out.to_ndarray()[0] for out in resampler.resample(None))

    for block, rate in blocks:
        clock.check()
        if rate != resampled_rate:
            # A stream may change its rate.
            yield from flushed()
            resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE) if rate != RATE else None
            resampled_rate = rate
        if resampler is None:
            yield block
        elif block.size:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block)[None], format="flt", layout="mono")
            frame.sample_rate = rate
            yield from (out.to_ndarray()[0] for out in resampler.resample(frame))
    yield from flushed()


def _collect(blocks: Iterator[np.ndarray], field: str, options: MediaOptions) -> np.ndarray:
    kept, size = [], 0
    for block in blocks:
        size += block.size
        _check_seconds(size / RATE, field, options)
        kept.append(block)
    if size == 0:
        raise InvalidRequest(field, "holds no sound")
    samples = np.concatenate(kept)
    if not np.isfinite(samples).all():
        raise InvalidRequest(field, "holds samples that are not finite")
    return np.pad(samples, (0, max(-samples.size % HOP, SHORTEST - samples.size)))


def _check_rate(rate: int, field: str) -> None:
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise InvalidRequest(field, f"must have a rate from {LOWEST_RATE} to {HIGHEST_RATE} Hz, got {rate}")


def _check_seconds(seconds: float, field: str, options: MediaOptions) -> None:
    if seconds > options.max_audio_seconds:
        raise InvalidRequest(field, f"is longer than {options.max_audio_seconds:g} s")
