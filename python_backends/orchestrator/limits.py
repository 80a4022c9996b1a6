"""How much the server takes on, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from python_backends.config.errors import InvalidRequest
from python_backends.config.schema import unknown_key


@dataclass(frozen=True)
class Timeouts:
    """Time limits of one request in seconds from its arrival; None is no limit.

    `queue_s`: until it is started. `first_audio_s`: until the first audio, where audio is asked for. `total_s`: until
    the last response.
    """

    queue_s: float | None = None
    first_audio_s: float | None = None
    total_s: float | None = None

    def within(self, bounds: Timeouts) -> Timeouts:
        """These limits, none of them longer than in `bounds`."""
        pairs = {item.name: (getattr(self, item.name), getattr(bounds, item.name)) for item in fields(self)}
        return Timeouts(**{name: _shorter(*pair) for name, pair in pairs.items()})


def _shorter(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)


@dataclass(frozen=True)
class Limits:
    """Limits of one orchestrator. `stages` holds the most open streams of each stage that has such a limit.

    `text_responses_per_s`: how many responses a second, over all streams, text may ask for; see Stream.urgent.
    """

    max_in_flight: int = 128
    max_queued: int = 256
    stages: dict[str, int] = field(default_factory=dict)
    timeouts: Timeouts = Timeouts()
    drain_s: float = 3.0
    text_responses_per_s: float = 5000


def parse_timeouts(value: object) -> Timeouts:
    """The request's `timeouts` object. Raises InvalidRequest that names the field."""
    if value is None:
        return Timeouts()
    if not isinstance(value, dict):
        raise InvalidRequest("timeouts", f"must be an object, got {type(value).__name__}")
    known = [item.name for item in fields(Timeouts)]
    for name in value:
        if name not in known:
            reason = unknown_key(name, known).replace("unknown key", "unknown field")
            raise InvalidRequest(f"timeouts.{name}", reason)
    value = {name: seconds for name, seconds in value.items() if seconds is not None}
    for name, seconds in value.items():
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds <= 1e9:
            raise InvalidRequest(
                f"timeouts.{name}", f"must be a number of seconds above 0, at most 1e9; got {seconds!r}"
            )
    return Timeouts(**value)
