"""What the engine remembers of one stream."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from python_backends.code2wav.options import SAMPLE_RATE


@dataclass(eq=False)
class Code2WavStream:
    """One open stream. `order`: rank of its arrival. `position`: frames decoded. `codes`: frames still to decode.

    `slot`: its place in the state pools, None while it queues for one and after its last frame was launched.
    `ready_since`: when the oldest frame in `codes` arrived. `first_packet_at`: when its first step was launched.
    `ended`: set exactly once; nothing reaches the sink afterwards.
    """

    stream_id: str
    sample_format: str
    order: int
    quantizers: int
    slot: int | None = None
    position: int = 0
    finished: bool = False
    ended: bool = False
    samples: int = 0
    ready_since: float = 0.0
    first_packet_at: float | None = None
    codes: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.codes = np.zeros((0, self.quantizers), np.int64)

    @property
    def place(self) -> int:
        """The slot of a running stream."""
        assert self.slot is not None
        return self.slot

    @property
    def pending(self) -> int:
        """Frames that arrived and are not decoded yet."""
        return len(self.codes)

    def put(self, codes: np.ndarray, finished: bool, now: float) -> None:
        """Add frames [frames, quantizers]."""
        if not self.pending:
            self.ready_since = now
        self.codes = np.concatenate([self.codes, codes])
        self.finished = finished

    def take(self, frames: int, now: float) -> np.ndarray:
        """Remove the oldest `frames` frames, to be decoded now."""
        taken, self.codes = self.codes[:frames], self.codes[frames:]
        if self.first_packet_at is None:
            self.first_packet_at = now
        self.position += frames
        return taken

    def seconds_left(self, now: float) -> float:
        """Playback time left until the listener runs out of audio, if it began with the first packet."""
        assert self.first_packet_at is not None
        return self.samples / SAMPLE_RATE - (now - self.first_packet_at)
