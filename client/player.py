"""Speech to the loudspeaker, through a program that plays raw samples."""

from __future__ import annotations

import asyncio

import numpy as np

_RATE = "24000"
PLAYERS = (
    ("aplay", "-q", "-t", "raw", "-f", "S16_LE", "-r", _RATE, "-c", "1"),
    ("pacat", "--raw", "--format=s16le", f"--rate={_RATE}", "--channels=1"),
    ("ffplay", "-loglevel", "error", "-nodisp", "-autoexit", "-f", "s16le", "-ar", _RATE, "-i", "-"),
)


class Player:
    """Plays chunks of mono int16 samples at 24 kHz one after the other. `command`: one of PLAYERS."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def play(self, samples: np.ndarray) -> None:
        """Queue `samples`; what the program has not taken yet waits in memory. Raises OSError."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(samples.astype("<i2").tobytes())

    async def finish(self) -> None:
        """Return when all has been heard."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Be silent at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
