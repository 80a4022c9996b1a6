"""Decoded media against what is known of them: the samples, pictures and times that the files were made of."""

from __future__ import annotations

import base64
import io
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from PIL import Image

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.engine import MediaOptions, MediaTensors
from python_backends.thinker.media.audio import decode_audio
from python_backends.thinker.media.frames import Sampling
from python_backends.thinker.media.image import decode_image
from python_backends.thinker.media.loader import load
from python_backends.thinker.media.sources import read_source
from python_backends.thinker.media.video import decode_video
from python_backends.thinker.messages import MediaRef
from tests.thinker import samples

OPTIONS = MediaOptions()
POSITIONS = 13


# ---- sound: the mean of the channels ---------------------------------------------------------------------------------
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


# ---- frames by their time --------------------------------------------------------------------------------------------
def film(times: list[float], container: str, declared: int = 30, codec: str | None = None, **options) -> bytes:
    """A film whose frame shown from `t` s on has brightness `15 + 18 t`; its header declares `declared` frames a
    second.
    """
    file = io.BytesIO()
    with av.open(file, mode="w", format=container, options=options) as output:
        video = output.add_stream(codec or ("libvpx" if container == "webm" else "libx264"), rate=declared)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        video.codec_context.time_base = Fraction(1, 1000)
        for time in times:
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), round(15 + 18 * time), np.uint8), format="rgb24")
            frame.pts, frame.time_base = round(time * 1000), Fraction(1, 1000)
            output.mux(video.encode(frame))
        output.mux(video.encode())
    return file.getvalue()


# Dense at first, then a frame a second: 21 frames, of which 12 s at 30 fps would make 360.
UNEVEN = [at / 10 for at in range(10)] + [float(at) for at in range(1, 12)]
CONTAINERS = ["matroska", "webm", "mp4", "mov", "mpegts"]


def times_of(frames: np.ndarray) -> np.ndarray:
    """When each frame was shown from, by its brightness."""
    return (frames.mean(axis=(1, 2, 3)) - 15) / 18


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("fps", "num_frames"), [(1, None), (2, None), (None, 6), (None, 12)])
def test_uneven_film_by_presentation_time(container, fps, num_frames):
    """A variable frame rate: `fps` and `num_frames` mean time, and the rate that the model is told is that of time."""
    video = decode_video(film(UNEVEN, container), "f", Sampling(fps, num_frames, False, POSITIONS), OPTIONS)
    seconds = len(video.frames) / video.fps
    # Matroska does not say how long the last frame stands.
    assert 10.5 <= seconds <= 12.2
    if num_frames:
        assert len(video.frames) == num_frames
    at = np.arange(len(video.frames)) / video.fps
    shown = np.array([max(time for time in UNEVEN if time <= now + 1e-3) for now in at])
    np.testing.assert_allclose(times_of(video.frames), shown, atol=0.06)


def index_first(film: bytes, path: Path) -> bytes:
    """An MP4 with its index before its frames, which FFmpeg only writes into a real file."""
    with av.open(io.BytesIO(film)) as source, av.open(str(path), mode="w", options={"movflags": "faststart"}) as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                output.mux(packet)
    return path.read_bytes()


@pytest.mark.parametrize("container", ["matroska", "avi", "mp4", "mpegts"])
def test_cut_film_has_the_time_that_is_left(container, tmp_path):
    """Half of a file: its header, if it has one, still promises the whole."""
    noisy = samples.film(frames=80, rate=8, width=160, height=96, kind=container)
    noisy = index_first(noisy, tmp_path / "film.mp4") if container == "mp4" else noisy
    cut = decode_video(noisy[: len(noisy) // 2], "f", Sampling(2, None, False, POSITIONS), OPTIONS)
    whole = decode_video(noisy, "f", Sampling(2, None, False, POSITIONS), OPTIONS)
    assert len(whole.frames) == 20
    assert 4 <= len(cut.frames) <= 15
    np.testing.assert_array_equal(cut.frames[:-1], whole.frames[: len(cut.frames) - 1])
    assert cut.fps == whole.fps


def test_growing_film_without_duration_or_index():
    """As browsers' recorders send them: a live WebM, a fragmented MP4."""
    for container, options in (
        ("webm", {"live": "1"}),
        ("matroska", {"live": "1"}),
        ("mp4", {"movflags": "frag_keyframe+empty_moov"}),
    ):
        data = film(UNEVEN, container, **options)
        video = decode_video(data, "f", Sampling(1, None, False, POSITIONS), OPTIONS)
        np.testing.assert_allclose(times_of(video.frames), np.arange(len(video.frames)), atol=0.06)
        assert len(video.frames) in (11, 12)


def test_even_film_without_times():
    """AVI has none: its rate is constant."""
    even = [at / 5 for at in range(50)]
    file = io.BytesIO()
    with av.open(file, mode="w", format="avi") as output:
        video = output.add_stream("ffv1", rate=5)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        for time in even:
            pixels = np.full((64, 64, 3), round(15 + 18 * time), np.uint8)
            output.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(video.encode())
    data = file.getvalue()
    got = decode_video(data, "f", Sampling(1, None, False, POSITIONS), OPTIONS)
    np.testing.assert_allclose(times_of(got.frames), np.arange(10), atol=0.06)


# ---- upright ---------------------------------------------------------------------------------------------------------
def corners(height: int = 64, width: int = 96) -> np.ndarray:
    """Red, green, blue and white quarters: no two of the eight ways to hold it look alike."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = 220, 30, 30
    pixels[: height // 2, width // 2 :] = 30, 200, 30
    pixels[height // 2 :, : width // 2] = 30, 30, 220
    pixels[height // 2 :, width // 2 :] = 230, 230, 230
    return pixels


# FFmpeg's display matrix (a, b, c, d), a pixel at (x, y) shown at (a x + c y, b x + d y), and NumPy's word for it.
TURNS = {
    "upright": ((1, 0, 0, 1), lambda image: image),
    "90 clockwise": ((0, 1, -1, 0), lambda image: np.rot90(image, -1)),
    "180": ((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
    "270 clockwise": ((0, -1, 1, 0), lambda image: np.rot90(image, 1)),
    "mirrored": ((-1, 0, 0, 1), np.fliplr),
    "upside down mirrored": ((1, 0, 0, -1), np.flipud),
    "transposed": ((0, 1, 1, 0), lambda image: image.transpose(1, 0, 2)),
    "transverse": ((0, -1, -1, 0), lambda image: np.rot90(image, 2).transpose(1, 0, 2)),
}


@pytest.mark.parametrize("container", ["mp4", "mov"])
@pytest.mark.parametrize("name", TURNS)
def test_display_matrix_turns_the_frames(container, name):
    (a, b, c, d), turned = TURNS[name]
    file = io.BytesIO()
    with av.open(file, mode="w", format=container) as output:
        video = output.add_stream("mpeg4", rate=4, options={"qscale": "2"})
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        for _ in range(8):
            output.mux(video.encode(av.VideoFrame.from_ndarray(corners(), format="rgb24")))
        output.mux(video.encode())
    data = bytearray(file.getvalue())
    at = data.index(b"tkhd") + 4 + 4 + 5 * 4 + 8 + 8
    matrix = np.array([[a, b, 0], [c, d, 0], [0, 0, 16384]]) * 65536
    assert data[at : at + 4] == b"\0\1\0\0"
    data[at : at + 36] = matrix.astype(">i4").tobytes()
    got = decode_video(bytes(data), "f", Sampling(1, None, False, POSITIONS), OPTIONS)
    wanted = turned(corners())
    assert got.frames.shape[1:] == wanted.shape
    assert np.abs(got.frames.astype(int) - wanted).mean() < 12


@pytest.mark.parametrize("container", ["matroska", "mpegts", "mp4"])
@pytest.mark.parametrize("turn", [90, 180, 270])
def test_rotation_inside_the_video_stream(container, turn):
    """In H.264's own display orientation, at the key frames alone."""
    raw, file = io.BytesIO(), io.BytesIO()
    with av.open(raw, mode="w", format="h264") as output:
        video = output.add_stream("libx264", rate=4)
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        frames = [av.VideoFrame.from_ndarray(corners(), format="rgb24") for _ in range(8)]
        output.mux([packet for frame in [*frames, None] for packet in video.encode(frame)])
    raw.seek(0)
    with av.open(raw, format="h264") as source, av.open(file, mode="w", format=container) as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        mark = f"h264_metadata=display_orientation=insert:rotate={turn}"
        mark = BitStreamFilterContext(mark, source.streams.video[0], stream)
        packets = [out for packet in source.demux() for out in mark.filter(packet if packet.size else None)]
        for at, packet in enumerate(packets):
            packet.stream, packet.time_base = stream, Fraction(1, 4)
            packet.pts = packet.dts = at
            packet.duration = 1
            output.mux(packet)
    got = decode_video(file.getvalue(), "f", Sampling(1, None, False, POSITIONS), OPTIONS)
    assert len(got.frames) == 2
    # Anti-clockwise, unlike the container's.
    wanted = np.rot90(corners(), turn // 90)
    assert got.frames.shape[1:] == wanted.shape
    assert np.abs(got.frames.astype(int) - wanted).mean() < 12


# ---- images ----------------------------------------------------------------------------------------------------------
def saved(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


GREY = np.tile(np.linspace(0, 255, 64).round().astype(np.uint8), (48, 1))


def shades(values: np.ndarray) -> np.ndarray:
    """The grey of an RGB image, which must be grey."""
    assert (values[..., 0] == values[..., 1]).all()
    assert (values[..., 0] == values[..., 2]).all()
    return values[..., 0]


@pytest.mark.parametrize(
    "data",
    [
        saved(Image.fromarray(GREY.astype(np.uint16) * 257), "PNG"),
        saved(Image.fromarray(GREY.astype(np.uint16) * 257), "TIFF"),
        saved(Image.fromarray(GREY.astype(np.int32) * 257), "TIFF"),
        saved(Image.fromarray(GREY.astype(np.float32) / 255), "TIFF"),
        saved(Image.fromarray(GREY.astype(np.float32)), "TIFF"),
        saved(Image.fromarray(GREY), "PNG"),
        saved(Image.fromarray(GREY).convert("P"), "PNG"),
        saved(Image.fromarray(np.dstack([GREY, np.full_like(GREY, 255)])), "PNG"),
        saved(Image.merge("CMYK", [Image.new("L", (64, 48))] * 3 + [Image.fromarray(255 - GREY)]), "TIFF"),
    ],
    ids=["I;16 png", "I;16 tiff", "I tiff", "F tiff 0-1", "F tiff 0-255", "L", "P", "LA", "CMYK tiff"],
)
def test_grey_of_16_bits_and_other_modes(data):
    """16-bit grey arrived almost white."""
    image = decode_image(data, "f", OPTIONS)
    assert image.mode == "RGB"
    np.testing.assert_allclose(shades(np.asarray(image)).astype(int), GREY, atol=1)


def test_modes_that_have_transparent_parts():
    clear = np.zeros_like(GREY)
    clear[:, :32] = 255
    wanted = np.where(clear > 0, GREY, 255)
    palette = Image.fromarray(GREY).convert("P")
    index = int(np.asarray(palette)[0, 0])
    for image in (Image.fromarray(np.dstack([GREY, clear])), Image.fromarray(np.dstack([GREY] * 3 + [clear]))):
        np.testing.assert_allclose(shades(np.asarray(decode_image(saved(image, "PNG"), "f", OPTIONS))), wanted, atol=1)
    got = shades(np.asarray(decode_image(saved(palette, "PNG", transparency=index), "f", OPTIONS)))
    np.testing.assert_allclose(got.astype(int), np.where(np.asarray(palette) == index, 255, GREY), atol=1)


@pytest.mark.parametrize("value", [-1.0, 300.0, np.nan, np.inf])
def test_grey_that_has_no_white_is_refused(value):
    data = saved(Image.fromarray(np.full((8, 8), value, np.float32)), "TIFF")
    with pytest.raises(InvalidRequest, match="holds grey values below 0"):
        decode_image(data, "f", OPTIONS)


def test_phone_photos_heic_and_avif():
    """Right colours, upright, and transparent parts on white."""
    pixels = corners(128, 192)
    turned = Image.Exif()
    turned[0x0112] = 6
    for kind in ("HEIF", "AVIF"):
        plain = np.asarray(decode_image(saved(Image.fromarray(pixels), kind, quality=95), "f", OPTIONS))
        assert np.abs(plain.astype(int) - pixels).mean() < 4
        data = saved(Image.fromarray(pixels), kind, quality=95, exif=turned.tobytes())
        upright = np.asarray(decode_image(data, "f", OPTIONS))
        assert upright.shape == (192, 128, 3)
        assert np.abs(upright.astype(int) - np.rot90(pixels, -1)).mean() < 6
        layer = np.dstack([pixels, np.zeros(pixels.shape[:2], np.uint8)])
        assert np.asarray(decode_image(saved(Image.fromarray(layer), kind), "f", OPTIONS)).min() > 250


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_heic_and_avif_bombs_are_refused(kind):
    """By the size that the header tells, before any pixel is decoded; and when the header lies."""
    data = saved(Image.fromarray(corners(512, 512)), kind)
    with pytest.raises(InvalidRequest, match="has 512 x 512 pixels, more than 100000"):
        decode_image(data, "f", MediaOptions(max_image_pixels=100_000))
    at = data.index(b"ispe") + 8
    lie = data[:at] + (30000).to_bytes(4, "big") * 2 + data[at + 8 :]
    with pytest.raises(InvalidRequest, match="more than 50000000|known format"):
        decode_image(lie, "f", OPTIONS)
    with pytest.raises(InvalidRequest, match="damaged or cut|known format"):
        decode_image(data[: len(data) // 2], "f", OPTIONS)


# ---- base64 as people send it ----------------------------------------------------------------------------------------
# Bytes that use all of the alphabet, and whose base64 ends in two, one and no `=`.
BODIES = [bytes(range(256)) * 3 + b"x" * more for more in range(3)]


@pytest.mark.parametrize(
    "write",
    [
        lambda data: base64.encodebytes(data).decode(),
        lambda data: base64.encodebytes(data).decode().replace("\n", "\r\n"),
        lambda data: "\n " + base64.b64encode(data).decode() + "\n",
        lambda data: base64.urlsafe_b64encode(data).decode(),
        lambda data: base64.b64encode(data).decode().rstrip("="),
        lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
        lambda data: base64.b64encode(data).decode().replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
    ],
    ids=["line breaks", "CRLF", "around", "URL-safe", "unpadded", "URL-safe unpadded", "percent"],
)
@pytest.mark.parametrize("head", ["data:;base64,", "data:audio/wav;base64,", "DATA:image/png;charset=x;BASE64,"])
def test_base64_as_people_send_it(write, head):
    for body in BODIES:
        assert read_source(head + write(body), "f", OPTIONS) == body


def test_base64_that_is_none_says_what_is_taken():
    for wrong in ("!!!!", "AAAAA", "AA=AAA", "é" * 4):
        with pytest.raises(InvalidRequest, match="not base64: taken are A-Z, a-z, 0-9"):
            read_source(f"data:;base64,{wrong}", "f", OPTIONS)


# ---- errors ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "taken"),
    [("audio", "WAV, FLAC, MP3"), ("image", "PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF and HEIC"), ("video", "MP4, MOV")],
)
def test_media_errors_name_what_is_taken(kind, taken):
    """And no object, address or path of this process."""
    wav, flac = samples.wav(samples.tone()), samples.wav(samples.tone(), kind="FLAC")
    for data in (b"nothing of the kind" * 9, wav[:30], flac[:200], samples.film()[:900], samples.png(corners())[:90]):
        with pytest.raises(InvalidRequest) as caught:
            load([MediaRef(kind, "f", source=samples.data_url(data))], MediaTensors(), OPTIONS, POSITIONS)
        said = str(caught.value)
        assert not any(word in said for word in ("0x", "<", "object", "Errno", "none", "/")), said
    with pytest.raises(InvalidRequest, match=f"known format.*taken are {taken}"):
        load([MediaRef(kind, "f", source="data:,nothing")], MediaTensors(), OPTIONS, POSITIONS)
