"""Which streams the next device step decodes, and how many frames of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from python_backends.code2wav.options import Code2WavOptions
from python_backends.code2wav.stream import Code2WavStream


@dataclass(frozen=True)
class Plan:
    """Decode `frames` frames of each of `streams`; or, without streams, nothing is due before `due_at`."""

    streams: tuple[Code2WavStream, ...] = ()
    frames: int = 0
    due_at: float | None = None


class DeadlineScheduler:
    """Groups ready streams by frame bucket, so that no row of a step is padding, and picks the most urgent group.

    First chunks come before all, oldest first; then the stream whose playback runs out first. A group waits for more
    streams of its size until its oldest chunk is `batch_wait_ms` old; a first chunk, a full group and a group that
    holds every running stream do not wait.
    """

    def __init__(self, options: Code2WavOptions) -> None:
        self._frame_sizes = options.frame_sizes()
        self._wait_s = options.batch_wait_ms / 1000
        batches = options.batch_sizes()
        self._limits = {
            frames: max((size for size in batches if size * frames <= options.max_step_frames), default=1)
            for frames in self._frame_sizes
        }

    def limit(self, frames: int) -> int:
        """Streams that one step of `frames` frames takes at most."""
        return self._limits[frames]

    def plan(self, running: Iterable[Code2WavStream], now: float) -> Plan:
        """`running`: streams with a slot. `now`: the clock of `Code2WavStream.ready_since`, seconds."""
        running = list(running)
        ready = sorted((stream for stream in running if stream.pending), key=lambda stream: _urgency(stream, now))
        groups: dict[int, list[Code2WavStream]] = {}
        for stream in ready:
            groups.setdefault(self._bucket(stream.pending), []).append(stream)
        due_at = None
        for frames, streams in groups.items():
            due = self._due_at(streams, self.limit(frames), len(running))
            if due <= now:
                return Plan(tuple(streams[: self.limit(frames)]), frames)
            due_at = due if due_at is None else min(due, due_at)
        return Plan(due_at=due_at)

    def _bucket(self, pending: int) -> int:
        return max(size for size in self._frame_sizes if size <= pending)

    def _due_at(self, streams: Sequence[Code2WavStream], limit: int, running: int) -> float:
        oldest = min(stream.ready_since for stream in streams)
        complete = len(streams) >= min(limit, running)
        first = any(stream.first_packet_at is None for stream in streams)
        return oldest if complete or first else oldest + self._wait_s


def _urgency(stream: Code2WavStream, now: float) -> tuple[int, float]:
    if stream.first_packet_at is None:
        return 0, stream.order
    return 1, stream.seconds_left(now)
