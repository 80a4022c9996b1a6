"""Every format of files that docs/media.md lists is read: a file of each is made here."""

from __future__ import annotations

import io
import re
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from python_backends.thinker.media.audio import decode_audio
from python_backends.thinker.media.frames import Sampling
from python_backends.thinker.media.image import decode_image
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.media.video import decode_video
from tests.thinker.samples import film, picture, png, tone, wav

SECONDS, FRAMES = 1.0, 20


def sound(container: str, codec: str, rate: int = 16000) -> bytes:
    file = io.BytesIO()
    with av.open(file, mode="w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout="mono")
        if codec == "wmav2":
            stream.bit_rate = 32_000
        frame = av.AudioFrame.from_ndarray(tone(SECONDS, rate)[None], format="flt", layout="mono")
        frame.sample_rate = rate
        for part in av.AudioResampler(format=stream.format.name, layout="mono", rate=rate).resample(frame):
            for packet in stream.encode(part):
                output.mux(packet)
        for packet in stream.encode():
            output.mux(packet)
    return file.getvalue()


def moving_gif() -> bytes:
    file = io.BytesIO()
    pictures = [Image.fromarray(picture(seed=seed)) for seed in range(FRAMES)]
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=100)
    return file.getvalue()


SOUNDS = {
    "WAV": lambda: wav(tone(SECONDS)),
    "FLAC": lambda: wav(tone(SECONDS), kind="FLAC"),
    "MP3": lambda: sound("mp3", "libmp3lame"),
    "Ogg": lambda: wav(tone(SECONDS), kind="OGG"),
    "Opus": lambda: sound("ogg", "libopus"),
    "AAC": lambda: sound("adts", "aac"),
    "M4A": lambda: sound("ipod", "aac"),
    "AIFF": lambda: sound("aiff", "pcm_s16be"),
    "AU": lambda: sound("au", "pcm_s16be"),
    "CAF": lambda: sound("caf", "pcm_s16le"),
    "AMR": lambda: sound("amr", "libopencore_amrnb", 8000),
    "WMA": lambda: sound("asf", "wmav2"),
    "the sound track of a film": lambda: film(sound=tone(SECONDS)),
}
FILMS = {
    "MP4": film,
    "MOV": lambda: film(kind="mov"),
    "MKV": lambda: film(kind="matroska"),
    "WebM": lambda: film(kind="webm", codec="libvpx"),
    "AVI": lambda: film(kind="avi"),
    "FLV": lambda: film(kind="flv", codec="flv"),
    "MPEG": lambda: film(rate=25, kind="mpeg", codec="mpeg1video"),
    "MPEG-TS": lambda: film(rate=25, kind="mpegts", codec="mpeg2video"),
    "WMV": lambda: film(kind="asf", codec="wmv2"),
    "Ogg": lambda: film(kind="ogg", codec="libvpx"),
    "GIF": moving_gif,
}
IMAGES = ("PNG", "JPEG", "WebP", "GIF", "BMP", "TIFF", "AVIF", "HEIC")


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds(name):
    samples = decode_audio(SOUNDS[name](), "f", MediaOptions())
    assert len(samples) >= 15_000 and np.abs(samples).max() > 0.1


@pytest.mark.parametrize("name", FILMS)
def test_films(name):
    frames = decode_video(FILMS[name](), "f", Sampling(None, 4, False, 13), MediaOptions()).frames
    assert frames.shape[1:] == (64, 96, 3) and len(np.unique(frames.mean(axis=(1, 2, 3)))) > 1


@pytest.mark.parametrize("name", IMAGES)
def test_images(name):
    image = decode_image(png(picture(), "HEIF" if name == "HEIC" else name), "f", MediaOptions())
    assert image.size == (96, 64) and np.abs(np.asarray(image).astype(int) - picture()).mean() < 12


def test_the_document_lists_no_other():
    page = (Path(__file__).resolve().parents[2] / "docs/media.md").read_text(encoding="utf-8")

    def listed(part: str) -> set[str]:
        (row,) = re.findall(rf'^\| `{{"type": "{part}".*?\| (.*) \|$', page, re.MULTILINE)
        return set(re.split(r", | or ", row.split(";")[0].partition(":")[2] or row.split(";")[0]))

    assert {name.strip() for name in listed("input_audio")} == set(SOUNDS)
    assert {name.strip() for name in listed("image_url")} == set(IMAGES)
    assert {name.partition(",")[0].strip() for name in listed("video_url")} == set(FILMS)
