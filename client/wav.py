"""A WAV file that is valid while it grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from client.streaming import SAMPLE_RATE


class WavWriter:
    """Appends chunks to a 16-bit, 24 kHz, mono WAV file; flushed with each chunk, so that a player may follow it."""

    def __init__(self, path: str | Path) -> None:
        self._file = soundfile.SoundFile(path, "w", SAMPLE_RATE, 1, subtype="PCM_16")
        self.seconds = 0.0

    def write(self, samples: np.ndarray) -> None:
        """`samples`: 1-D float32 in [-1, 1] or int16."""
        self._file.write(samples)
        self._file.flush()
        self.seconds += samples.size / SAMPLE_RATE

    def close(self) -> None:
        self._file.close()
