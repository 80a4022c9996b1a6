"""What a driver saw of one request, and the figures of a run made from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

SAMPLE_RATE = 24_000
FRAME_S = 0.08  # the decoder trims up to a frame at the ends of an utterance
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
METRICS = ("ttft_ms", "ttfp_ms", "latency_ms", "rtf")


@dataclass
class Record:
    """One request. Times are seconds on one clock; `audio` holds (time of arrival, seconds of sound) of each packet."""

    started: float
    first_text: float | None = None
    audio: list[tuple[float, float]] = field(default_factory=list)
    finished: float | None = None
    error: str | None = None
    expected_audio_s: float | None = None
    summary: dict = field(default_factory=dict)

    def text_arrived(self, now: float) -> None:
        if self.first_text is None:
            self.first_text = now

    @property
    def audio_s(self) -> float:
        return sum(seconds for _, seconds in self.audio)

    @property
    def failure(self) -> str | None:
        """Why the request does not count as served, None when it does."""
        if self.error is not None:
            return self.error
        if self.finished is None:
            return "no end"
        if self.expected_audio_s is not None and abs(self.audio_s - self.expected_audio_s) > FRAME_S:
            return f"{self.audio_s:.2f} s of audio where {self.expected_audio_s:.2f} s were asked for"
        return None

    def metrics(self) -> dict[str, float]:
        """TTFT, TTFP (first audio packet) and latency in ms; RTF: latency over seconds of audio."""
        latency = self.finished - self.started
        nothing = float("nan")
        return {
            "ttft_ms": 1000 * (self.first_text - self.started) if self.first_text is not None else nothing,
            "ttfp_ms": 1000 * (self.audio[0][0] - self.started) if self.audio else nothing,
            "latency_ms": 1000 * latency,
            "rtf": latency / self.audio_s if self.audio else nothing,
        }


@dataclass(frozen=True)
class Playback:
    """How a player fared that starts with the first packet and consumes at 1x."""

    under_runs: int
    gap_s: float


def playback(audio: list[tuple[float, float]]) -> Playback:
    """Play packets of (arrival, seconds): a packet that arrives after the sound ran out is an under-run."""
    under_runs, gap_s, plays_until = 0, 0.0, None
    for arrived, seconds in audio:
        if plays_until is not None and arrived > plays_until:
            under_runs += 1
            gap_s += arrived - plays_until
            plays_until = arrived
        plays_until = (arrived if plays_until is None else plays_until) + seconds
    return Playback(under_runs, gap_s)


def summarise(records: list[Record]) -> dict[str, float]:
    """The figures of a run: rates over the time from the first start to the last end, statistics of the served."""
    served = [record for record in records if record.failure is None]
    row: dict[str, float] = {"requests": len(records), "failures": len(records) - len(served)}
    if not served:
        return row
    wall_s = max(record.finished for record in served) - min(record.started for record in records)
    row["wall_s"] = wall_s
    row["requests_per_s"] = len(served) / wall_s
    row["audio_s_per_s"] = sum(record.audio_s for record in served) / wall_s
    columns = [record.metrics() for record in served]
    for name in METRICS:
        values = np.array([column[name] for column in columns])
        row[f"{name}_mean"] = float(values.mean())
        for label, percent in PERCENTILES.items():
            row[f"{name}_{label}"] = float(np.percentile(values, percent))
    played = [playback(record.audio) for record in served]
    row["under_run_requests"] = sum(item.under_runs > 0 for item in played)
    row["under_runs"] = sum(item.under_runs for item in played)
    row["longest_gaps_s"] = max(item.gap_s for item in played)
    return row
