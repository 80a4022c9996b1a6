"""Make the media that the runner asks about when it is given none: the files of client/media_files but its texts.

    python scripts/make_media.py [DIRECTORY]

Needs espeak-ng (speech); the picture is drawn with Pillow, the film encoded with PyAV. The files are committed, so that
nobody else needs espeak-ng.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import soundfile
from PIL import Image, ImageDraw

RATE = 16_000
SIZE = (320, 240)
FILM_S, FRAMES_PER_S = 4, 12
SPEECH = {
    "greeting.wav": ("en-us", "Good morning. The train to the sea leaves at ten past nine from platform four."),
    "weather.wav": ("en-gb-scotland", "Tomorrow it will rain in the north, and the sun will shine in the south."),
}
NARRATION = "The red ball rolls down the hill and into the lake."


def speak(voice: str, text: str) -> np.ndarray:
    """Speech of espeak-ng: int16 [samples] at 16 kHz."""
    spoken = subprocess.run(["espeak-ng", "-v", voice, "--stdout", text], check=True, capture_output=True).stdout
    samples, rate = soundfile.read(io.BytesIO(spoken), dtype="int16")
    frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler("s16", "mono", RATE)
    return np.concatenate([part.to_ndarray()[0] for part in [*resampler.resample(frame), *resampler.resample(None)]])


def draw(progress: float) -> Image.Image:
    """A hill, a lake, a house, and a red ball that has rolled `progress` (0 to 1) of its way."""
    picture = Image.new("RGB", SIZE, (150, 200, 240))
    pen = ImageDraw.Draw(picture)
    pen.ellipse((250, 15, 295, 60), fill=(250, 220, 60))
    pen.polygon([(0, 90), (220, 200), (0, 200)], fill=(80, 150, 70))
    pen.rectangle((0, 200, 320, 240), fill=(70, 130, 60))
    pen.rectangle((215, 195, 320, 240), fill=(40, 90, 190))
    pen.rectangle((12, 62, 52, 100), fill=(190, 140, 90))
    pen.polygon([(6, 62), (32, 40), (58, 62)], fill=(150, 50, 40))
    x, y = 70 + 190 * progress, 105 + 95 * progress
    pen.ellipse((x - 12, y - 12, x + 12, y + 12), fill=(210, 30, 40))
    return picture


def film(path: Path) -> None:
    """The ball on its way, with a narration: H.264 and AAC."""
    sound = np.zeros(FILM_S * RATE, np.int16)
    told = speak("en-us", NARRATION)[: sound.size]
    sound[: told.size] = told
    with av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=FRAMES_PER_S, width=SIZE[0], height=SIZE[1], pix_fmt="yuv420p")
        audio = out.add_stream("aac", rate=RATE, layout="mono")
        for at in range(FILM_S * FRAMES_PER_S):
            out.mux(video.encode(av.VideoFrame.from_image(draw(at / (FILM_S * FRAMES_PER_S - 1)))))
        out.mux(video.encode(None))
        frame = av.AudioFrame.from_ndarray(sound[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE, 0
        out.mux(audio.encode(frame))
        out.mux(audio.encode(None))


def main() -> None:
    where = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "client" / "media_files")
    where.mkdir(parents=True, exist_ok=True)
    for name, (voice, text) in SPEECH.items():
        soundfile.write(where / name, speak(voice, text), RATE)
    draw(0.4).save(where / "hill.png", optimize=True)
    film(where / "ball.mp4")


if __name__ == "__main__":
    main()
