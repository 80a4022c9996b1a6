"""Decoded sound against the samples that it was made of: the mean of the channels, in its time."""

from __future__ import annotations

import io
import struct
from fractions import Fraction

import av
import numpy as np
import pytest

from python_backends.thinker.engine import MediaOptions
from python_backends.thinker.media.audio import decode_audio
from python_backends.thinker.media.frames import Sampling
from python_backends.thinker.media.video import decode_video
from tests.thinker import samples

OPTIONS = MediaOptions()
POSITIONS = 13


def channels(count: int, seconds: float = 1.0, rate: int = 16000) -> np.ndarray:
    """float32 [count, n], another tone in each channel."""
    return np.stack([samples.tone(seconds, rate, 200.0 + 130 * at) for at in range(count)]) * np.float32(0.8)


def encoded(sound: np.ndarray, rate: int, layout: str, container: str, codec: str, sample_format: str) -> bytes:
    """float32 [channels, n] through PyAV."""
    scale = {"u8": 128, "s16": 2**15, "s32": 2**31}.get(sample_format.removesuffix("p"))
    if scale is not None:
        kind = np.dtype({128: "u1", 2**15: "i2", 2**31: "i4"}[scale])
        whole = np.round(sound.astype(np.float64) * (scale - 1))
        sound = (whole + (128 if scale == 128 else 0)).astype(kind)
    elif sample_format.startswith("dbl"):
        sound = sound.astype(np.float64)
    if not sample_format.endswith("p"):
        sound = sound.T.reshape(1, -1)
    file = io.BytesIO()
    with av.open(file, mode="w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        stream.codec_context.format = sample_format
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), format=sample_format, layout=layout)
        frame.sample_rate = rate
        fifo = av.AudioFifo()
        fifo.write(frame)
        size = stream.codec_context.frame_size or 1024
        while part := fifo.read(size) or fifo.read(size, partial=True):
            output.mux(stream.encode(part))
        # The FLAC encoder ends with an empty packet.
        output.mux([packet for packet in stream.encode() if packet.size])
    return file.getvalue()


def level(sound: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(sound, dtype=np.float64))))


LOSSLESS = [
    # Container, codec, sample format, layout; what a sample may be off by.
    ("wav", "pcm_u8", "u8", "stereo", 1.5 / 128),
    ("wav", "pcm_s16le", "s16", "stereo", 1e-4),
    ("wav", "pcm_s32le", "s32", "5.1", 1e-6),
    ("wav", "pcm_f32le", "flt", "7.1", 1e-6),
    ("wav", "pcm_f64le", "dbl", "stereo", 1e-6),
    ("mov", "pcm_s16le", "s16", "stereo", 1e-4),
    ("mov", "pcm_f32le", "flt", "quad", 1e-6),
    ("matroska", "pcm_s16le", "s16", "5.1", 1e-4),
    ("matroska", "pcm_f32le", "flt", "stereo", 1e-6),
    ("flac", "flac", "s16", "stereo", 1e-4),
    ("matroska", "flac", "s32", "5.1", 1e-6),
    ("ipod", "alac", "s16p", "stereo", 1e-4),
    ("ipod", "alac", "s32p", "5.1", 1e-6),
    ("mov", "pcm_s16le", "s16", "mono", 1e-4),
]


@pytest.mark.parametrize(
    ("container", "codec", "sample_format", "layout", "error"),
    LOSSLESS,
    ids=[f"{container} {sample_format} {layout}" for container, _, sample_format, layout, _ in LOSSLESS],
)
def test_channels_are_mixed_to_their_mean_by_both_decoders(container, codec, sample_format, layout, error):
    """soundfile reads wav and flac, PyAV the others: the same samples give the same answer."""
    given = channels(av.AudioLayout(layout).nb_channels)
    got = decode_audio(encoded(given, 16000, layout, container, codec, sample_format), "f", OPTIONS)
    np.testing.assert_allclose(got, given.mean(axis=0), rtol=0, atol=error)


def test_mean_of_64_bit_integers():
    """A WAV that only PyAV reads, in a sample format that it gives to nobody as an array."""
    given = channels(2)
    body = (given.T.astype(np.float64) * 2**62).astype("<i8").tobytes()
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + len(body),
        b"WAVE",
        b"fmt ",
        16,
        1,
        2,
        16000,
        256000,
        16,
        64,
        b"data",
        len(body),
    )
    np.testing.assert_allclose(2 * decode_audio(head + body, "f", OPTIONS), given.mean(axis=0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000, 96000])
def test_mean_at_every_rate(rate):
    """FLAC by soundfile, ALAC and Matroska by PyAV: equal to the last bit, and as loud as the mean that was encoded."""
    given = channels(2, rate=rate)
    flac, alac, matroska = (
        decode_audio(encoded(given, rate, "stereo", container, codec, kind), "f", OPTIONS)
        for container, codec, kind in (("flac", "flac", "s16"), ("ipod", "alac", "s16p"), ("matroska", "flac", "s16"))
    )
    np.testing.assert_allclose(alac, flac, rtol=0, atol=2e-6)
    np.testing.assert_allclose(matroska, flac, rtol=0, atol=2e-6)
    assert level(flac) == pytest.approx(level(given.mean(axis=0)), rel=0.01)


LOSSY = [
    ("ipod", "aac", "fltp", "stereo", 44100),
    ("ipod", "aac", "fltp", "5.1", 48000),
    ("adts", "aac", "fltp", "stereo", 16000),
    ("mp4", "aac", "fltp", "5.1", 44100),
    ("webm", "libopus", "flt", "stereo", 48000),
    ("ogg", "libopus", "flt", "5.1", 48000),
    ("matroska", "ac3", "fltp", "5.1(side)", 48000),
    ("mp3", "libmp3lame", "fltp", "stereo", 44100),
    ("avi", "libmp3lame", "fltp", "stereo", 48000),
]


@pytest.mark.parametrize(
    ("container", "codec", "sample_format", "layout", "rate"),
    LOSSY,
    ids=[f"{container} {codec} {layout}" for container, codec, _, layout, _ in LOSSY],
)
def test_lossy_sound_is_as_loud_as_the_mean(container, codec, sample_format, layout, rate):
    """One tone in all channels: it was 1.41 times too loud in stereo and 3.8 times in 5.1."""
    tone = 0.5 * samples.tone(1.5, rate)
    given = np.stack([tone] * av.AudioLayout(layout).nb_channels)
    got = decode_audio(encoded(given, rate, layout, container, codec, sample_format), "f", OPTIONS)
    inner = got[4000:20000]
    # The low channel of 5.1 takes no tone of 440 Hz from some encoders, so the mean of the others is what is left.
    assert level(inner) == pytest.approx(level(tone[rate // 4 : rate // 4 * 5]), rel=0.2 if "5.1" in layout else 0.05)


# ---- sound tracks in their time --------------------------------------------------------------------------------------
def talkie(sound_at: float, picture_at: float, container: str = "mov", seconds: float = 3.0) -> bytes:
    """A film of 10 frames a second whose brightness is 10 for each tenth of a second since *its* start, and a sound."""
    file = io.BytesIO()
    with av.open(file, mode="w", format=container) as output:
        video = output.add_stream("mpeg4" if container != "webm" else "libvpx", rate=10)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        audio = output.add_stream("libopus" if container == "webm" else "pcm_s16le", rate=48000, layout="mono")
        packets = []
        for at in range(round(seconds * 10)):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 5 + 8 * at, np.uint8), format="rgb24")
            frame.pts, frame.time_base = at + round(picture_at * 10), Fraction(1, 10)
            packets += video.encode(frame)
        packets += video.encode()
        fifo = av.AudioFifo()
        whole = av.AudioFrame.from_ndarray((samples.tone(2.0, 48000) * 30000).astype(np.int16)[None], "s16", "mono")
        whole.sample_rate = 48000
        fifo.write(whole)
        position = round(sound_at * 48000)
        while part := fifo.read(960):
            part.pts, part.time_base = position, Fraction(1, 48000)
            position += part.samples
            packets += audio.encode(part)
        packets += audio.encode()
        for packet in sorted(packets, key=lambda one: one.dts * one.time_base):
            output.mux(packet)
    return file.getvalue()


def begin(sound: np.ndarray) -> float:
    return float(np.flatnonzero(np.abs(sound) > 0.02)[0]) / 16000


@pytest.mark.parametrize("container", ["mov", "matroska", "webm"])
@pytest.mark.parametrize("late", [0.0, 0.5, 1.7])
def test_a_sound_track_that_starts_late_follows_silence(container, late):
    """For a film that is only listened to and for one that is seen too."""
    data = talkie(late, 0.0, container)
    heard = decode_audio(data, "f", OPTIONS)
    seen = decode_video(data, "f", Sampling(1, None, True, POSITIONS), OPTIONS)
    np.testing.assert_array_equal(heard, seen.sound)
    assert begin(heard) == pytest.approx(late, abs=0.01)
    assert len(heard) / 16000 == pytest.approx(late + 2.0, abs=0.05)
    np.testing.assert_allclose(seen.frames.mean(axis=(1, 2, 3)), [5, 85, 165], atol=6)


@pytest.mark.parametrize("container", ["mov", "matroska"])
def test_pictures_that_start_late_are_placed_in_the_sounds_time(container):
    """Until they come the first one stands; without sound the film begins with it."""
    data = talkie(0.0, 1.0, container)
    seen = decode_video(data, "f", Sampling(1, None, True, POSITIONS), OPTIONS)
    assert begin(seen.sound) == pytest.approx(0.0, abs=0.01)
    np.testing.assert_allclose(seen.frames.mean(axis=(1, 2, 3)), [5, 5, 85, 165], atol=6)
    silent = decode_video(data, "f", Sampling(1, None, False, POSITIONS), OPTIONS)
    np.testing.assert_allclose(silent.frames.mean(axis=(1, 2, 3)), [5, 85, 165], atol=6)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_wav_whose_writer_did_not_come_back_to_tell_its_size(size):
    """Growing files and those of a recorder that was stopped."""
    tone = samples.tone(1.5)
    data = bytearray(samples.wav(tone, subtype="PCM_16"))
    at = data.index(b"data") + 4
    data[4:8] = data[at : at + 4] = struct.pack("<I", size)
    np.testing.assert_allclose(decode_audio(bytes(data), "f", OPTIONS), tone, atol=1e-4)
