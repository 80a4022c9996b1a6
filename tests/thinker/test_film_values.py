"""Frames of films against what they were made of: by presentation time, upright."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from python_backends.thinker.engine import MediaOptions
from python_backends.thinker.media.frames import Sampling
from python_backends.thinker.media.video import decode_video
from tests.thinker import samples
from tests.thinker.samples import corners

OPTIONS = MediaOptions()
POSITIONS = 13


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


def test_avi_of_h264_with_b_frames():
    """What FFmpeg says of presentation there is a guess: packets have an order alone."""
    even = [at / 10 for at in range(100)]
    file = io.BytesIO()
    with av.open(file, mode="w", format="avi") as output:
        video = output.add_stream("libx264", rate=10, options={"bf": "3"})
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        for number, time in enumerate(even):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), round(15 + 18 * time), np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            output.mux(video.encode(frame))
        output.mux(video.encode())
    for fps in (1, 2):
        got = decode_video(file.getvalue(), "f", Sampling(fps, None, False, POSITIONS), OPTIONS)
        np.testing.assert_allclose(times_of(got.frames), np.arange(len(got.frames)) / got.fps, atol=0.16)
        assert len(got.frames) == 10 * fps


def test_avi_whose_frames_are_shown_on_has_their_time():
    """Its empty packets say so."""
    times = [0, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 41, 42]
    file = io.BytesIO()
    with av.open(file, mode="w", format="avi") as output:
        video = output.add_stream("ffv1", rate=5)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        for at in times:
            pixels = np.full((64, 64, 3), round(15 + 18 * at / 5), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, 5)
            output.mux(video.encode(frame))
        output.mux(video.encode())
    got = decode_video(file.getvalue(), "f", Sampling(1, None, False, POSITIONS), OPTIONS)
    np.testing.assert_allclose(times_of(got.frames), [0, 1, 2, 3, 4, 4, 6, 6], atol=0.06)


def test_the_same_film_gives_the_same_frames_from_every_container():
    """The frames' times are sums of fractions: a length of 4 s must not become 3.9999."""
    even = [at / 10 for at in range(40)]
    plans = [
        decode_video(film(even, container, 10), "f", Sampling(None, 4, False, POSITIONS), OPTIONS).fps
        for container in (*CONTAINERS, "flv")
    ]
    assert plans == [1.0] * 6


# ---- upright ---------------------------------------------------------------------------------------------------------
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
