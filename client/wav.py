"""A WAV file that is valid at every moment while it grows."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import numpy as np

from client.streaming import SAMPLE_RATE

_HEADER_BYTES = 44
_UNKNOWN = 0xFFFFFFFF


class WavWriter:
    """Appends chunks to a 16-bit, 24 kHz, mono WAV file that does not exist yet.

    The samples are written before the header counts them, so that whoever reads the file, or finds it after a crash,
    has a whole one. Raises OSError; what was written before is then still there and valid.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if path.exists():
            raise FileExistsError(17, "File exists", str(path))
        self.samples = 0
        # A file without a header is not valid either.
        part = path.with_name(path.name + ".part")
        self._file = part.open("xb", buffering=0)
        try:
            self._put(wav_header(0))
            part.rename(path)
        except BaseException:
            self._file.close()
            part.unlink(missing_ok=True)
            raise

    @property
    def seconds(self) -> float:
        """Of what has been written."""
        return self.samples / SAMPLE_RATE

    def write(self, samples: np.ndarray) -> None:
        """`samples`: 1-D float32 in [-1, 1] or int16."""
        if samples.dtype != np.int16:
            samples = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype(np.int16)
        self._file.seek(_HEADER_BYTES + 2 * self.samples)
        self._put(samples.astype("<i2").tobytes())
        self._file.seek(0)
        self._put(wav_header(self.samples + samples.size))
        self.samples += samples.size

    def close(self) -> None:
        """Cut off what the header does not count: a piece of a chunk that the disk had no room for."""
        if not self._file.closed:
            with suppress(OSError):  # the header is right without it
                self._file.truncate(_HEADER_BYTES + 2 * self.samples)
            self._file.close()

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]


def wav_header(samples: int | None) -> bytes:
    """Of a file with so many samples; None: of a stream, whose length nobody knows yet."""
    rate = SAMPLE_RATE
    size, riff = (_UNKNOWN, _UNKNOWN) if samples is None else (2 * samples, 36 + 2 * samples)
    return struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", riff, b"WAVEfmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", size)
