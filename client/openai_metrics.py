"""Prometheus metrics of the HTTP server's process."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_SECONDS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2)


class Metrics:
    """One registry a server, so that two of them in a process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        at: Any = {"namespace": "omni_openai", "registry": self.registry}
        self.requests = Counter("requests", "HTTP requests that have ended.", ["route", "status"], **at)
        self.in_flight = Gauge("requests_in_flight", "HTTP requests that run.", **at)
        self.duration = Histogram("request_seconds", "To the last byte.", ["route"], buckets=_SECONDS, **at)
        ended = "Answers by how they ended: stop, length, left (the client went away) or the code of an error."
        self.answers = Counter("answers", ended, ["outcome"], **at)
        self.first_audio = Histogram("first_audio_seconds", "To the first samples.", buckets=_SECONDS, **at)
        self.audio = Counter("audio_seconds", "Seconds of speech that were sent.", **at)
