"""A limit on how long one item may be decoded."""

from __future__ import annotations

import time

from python_backends.config.errors import InvalidRequest


class Clock:
    def __init__(self, field: str, seconds: float) -> None:
        self._field = field
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raises InvalidRequest when the time is over; called between frames."""
        if time.monotonic() > self._end:
            raise InvalidRequest(self._field, f"takes longer than {self._seconds:g} s to decode")
