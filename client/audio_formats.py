"""Speech as encoded audio: whole files, and streams whose pieces, joined, are one file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np

from client.streaming import SAMPLE_RATE
from client.wav import wav_header


@dataclass(frozen=True)
class Codec:
    """A container and codec of FFmpeg. `delay`: silent samples, at 24 kHz, that a stream begins with."""

    container: str
    name: str
    sample_format: str
    rate: int = SAMPLE_RATE
    delay: int = 0


CODECS = {
    "flac": Codec("flac", "flac", "s16"),
    "mp3": Codec("mp3", "libmp3lame", "s16p", delay=1105),
    "opus": Codec("ogg", "libopus", "s16", rate=48_000),
    "aac": Codec("adts", "aac", "fltp", delay=1024),
}
FORMATS = ("wav", "pcm16", "pcm", *CODECS)


def encoded(samples: np.ndarray, audio_format: str) -> bytes:
    """A whole file. `samples`: int16 [n], 24 kHz, mono; `audio_format`: one of FORMATS."""
    if audio_format not in CODECS:
        return (wav_header(samples.size) if audio_format == "wav" else b"") + samples.astype("<i2").tobytes()
    sink = io.BytesIO()  # a file of MP3 says at its begin what is known at its end
    encoding = _Encoding(CODECS[audio_format], sink)
    encoding.write(samples)
    encoding.close()
    return sink.getvalue()


class AudioStream:
    """Encodes one answer's speech piece by piece; what it returns, joined, is one file."""

    def __init__(self, audio_format: str) -> None:
        self._pipe = _Pipe()
        self._encoding = _Encoding(CODECS[audio_format], self._pipe) if audio_format in CODECS else None
        if audio_format == "wav":
            self._pipe.write(wav_header(None))

    def encode(self, samples: np.ndarray) -> bytes:
        """What can be sent after these samples (int16 [n]): perhaps nothing, as codecs work in frames."""
        if self._encoding is not None:
            self._encoding.write(samples)
        else:
            self._pipe.write(samples.astype("<i2").tobytes())
        return self._pipe.take()

    def finish(self) -> bytes:
        """The rest."""
        if self._encoding is not None:
            self._encoding.close()
        return self._pipe.take()


class _Pipe:
    """A file that can only be written."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data, self._data = bytes(self._data), bytearray()
        return data


class _Encoding:
    def __init__(self, codec: Codec, sink: io.BytesIO | _Pipe) -> None:
        # Each packet at once: FFmpeg would collect 32 KiB, Ogg a second.
        options = {"flush_packets": "1"} | ({"page_duration": "20000"} if codec.container == "ogg" else {})
        self._container = av.open(sink, "w", format=codec.container, options=options)
        self._stream = self._container.add_stream(
            codec.name, rate=codec.rate, layout="mono", format=codec.sample_format
        )
        self._container.start_encoding()
        self._samples = 0

    def write(self, samples: np.ndarray) -> None:
        if not samples.size:
            return
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, self._samples, Fraction(1, SAMPLE_RATE)
        self._samples += samples.size
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()
