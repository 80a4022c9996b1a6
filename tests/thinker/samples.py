"""Small media files made on the spot."""

from __future__ import annotations

import base64
import io
from fractions import Fraction

import av
import numpy as np
import soundfile
from PIL import Image


def tone(seconds: float = 1.0, rate: int = 16000, hertz: float = 440.0) -> np.ndarray:
    at = np.arange(round(seconds * rate)) / rate
    return (0.4 * np.sin(2 * np.pi * hertz * at) + 0.1 * np.sin(2 * np.pi * 3.1 * hertz * at)).astype(np.float32)


def wav(samples: np.ndarray, rate: int = 16000, kind: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype or ("FLOAT" if kind == "WAV" else None))
    return file.getvalue()


def picture(width: int = 96, height: int = 64, seed: int = 0) -> np.ndarray:
    """Smooth colours, uint8 [height, width, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(4, 20) + y / rng.uniform(4, 20) + rng.uniform(0, 6)) for _ in range(3)]
    return ((np.stack(waves, axis=-1) + 1) * 127).astype(np.uint8)


def corners(height: int = 64, width: int = 96) -> np.ndarray:
    """Red, green, blue and white quarters: no two of the eight ways to hold it look alike."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = 220, 30, 30
    pixels[: height // 2, width // 2 :] = 30, 200, 30
    pixels[height // 2 :, : width // 2] = 30, 30, 220
    pixels[height // 2 :, width // 2 :] = 230, 230, 230
    return pixels


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format=kind)
    return file.getvalue()


def film(
    frames: int = 20,
    rate: int = 8,
    width: int = 96,
    height: int = 64,
    sound: np.ndarray | None = None,
    kind: str = "mp4",
    codec: str = "mpeg4",
    **options: str,
) -> bytes:
    """An MPEG-4 film, `sound` float32 [n] at 16 kHz as its AAC track. `options`: of its container."""
    file = io.BytesIO()
    with av.open(file, mode="w", format=kind, options=options) as container:
        video = container.add_stream(codec, rate=Fraction(rate))
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        audio = container.add_stream("aac", rate=16000, layout="mono") if sound is not None else None
        for at in range(frames):
            image = np.roll(picture(width, height, seed=3), 3 * at, axis=1)
            for packet in video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in video.encode():
            container.mux(packet)
        if audio is not None:
            frame = av.AudioFrame.from_ndarray(sound[None], format="fltp", layout="mono")
            frame.sample_rate = 16000
            for packet in [*audio.encode(frame), *audio.encode()]:
                container.mux(packet)
    return file.getvalue()


def data_url(data: bytes, mime: str = "") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"
