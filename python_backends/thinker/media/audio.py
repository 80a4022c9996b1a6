"""Audio of any common format as mono float32 samples at 16 kHz."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.av_input import open_container
from python_backends.thinker.media.clock import Clock
from python_backends.thinker.media.options import MediaOptions

RATE = 16000
# The audio tower's mel frames are 10 ms: whole frames mean the same to every version of the feature extractor.
HOP = 160
# It works on chunks of a second. A sound that is shorter gets an edge that depends on the other sounds which happen to
# be encoded beside it, so it is filled up with silence.
SHORTEST = RATE
# A resampler's filters grow with the ratio of the rates: a wrong one in a file's header would take gigabytes.
LOWEST_RATE, HIGHEST_RATE = 1000, 384_000


def decode_audio(data: bytes, field: str, options: MediaOptions) -> np.ndarray:
    """Samples float32 [n] at 16 kHz, n at least 16000 and a multiple of 160. Raises InvalidRequest on `field`."""
    import soundfile

    clock = Clock(field, options.decode_seconds)
    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except soundfile.SoundFileError:
        with open_container(data, field, "audio") as container:
            return sound_track(container, field, options, clock)
    with file:
        _check_rate(file.samplerate, field)
        _check_seconds(len(file) / file.samplerate, field, options)
        return _collect(_resampled(_blocks(file, field), file.samplerate, clock), field, options)


def sound_track(container, field: str, options: MediaOptions, clock: Clock) -> np.ndarray:
    """The first audio stream of an open PyAV container, as `decode_audio`."""
    import av

    if not container.streams.audio:
        raise InvalidRequest(field, "has no sound track")
    if container.duration:
        _check_seconds(container.duration / av.time_base, field, options)
    return _collect(_decoded(container, field, clock), field, options)


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
    return _collect(_resampled(iter([samples.astype(np.float32)]), rate, clock), field, options)


def _blocks(file, field: str) -> Iterator[np.ndarray]:
    import soundfile

    try:
        while len(block := file.read(frames=10 * file.samplerate, dtype="float32", always_2d=True)):
            yield block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)
    except soundfile.SoundFileError as error:
        raise InvalidRequest(field, f"is damaged: {error}") from None


def _resampled(blocks: Iterator[np.ndarray], rate: int, clock: Clock) -> Iterator[np.ndarray]:
    if rate == RATE:
        for block in blocks:
            clock.check()
            yield block
        return
    import av

    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    for block in blocks:
        clock.check()
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block)[None], format="flt", layout="mono")
        frame.sample_rate = rate
        for out in resampler.resample(frame):
            yield out.to_ndarray()[0]
    for out in resampler.resample(None):
        yield out.to_ndarray()[0]


def _decoded(container, field: str, clock: Clock) -> Iterator[np.ndarray]:
    import av

    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    try:
        for frame in container.decode(audio=0):
            clock.check()
            _check_rate(frame.sample_rate, field)
            for out in resampler.resample(frame):
                yield out.to_ndarray()[0]
        for out in resampler.resample(None):
            yield out.to_ndarray()[0]
    except av.FFmpegError as error:
        raise InvalidRequest(field, f"is damaged: {error}") from None


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
