"""Ends an answer before a stop string, of which neither the client nor the Talker gets a part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from python_backends.config.sampling import ThinkerSampling
from python_backends.thinker.detokenizer import Detokenizer


@dataclass
class Output:
    """What may be passed on: ids with the text that they complete. `entries`: log probabilities of the ids."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    entries: list[Any] = field(default_factory=list)
    stopped: bool = False


@dataclass
class _Unit:
    """Ids that complete whole characters together; `end`: where their text ends in the whole text."""

    ids: list[int]
    entries: list[Any]
    end: int


class StopStrings:
    """Holds text and ids back while they may be the beginning of a stop string.

    A stop string counts once more than `min_tokens` ids are there, as in vLLM. An id whose text reaches into the stop
    string is dropped with it, even if its first characters are sent.
    """

    def __init__(self, sampling: ThinkerSampling, detokenizer: Detokenizer) -> None:
        self._stops, self._min = sampling.stop or [], sampling.min_tokens
        self._included = sampling.include_stop_str_in_output
        self._detokenizer = detokenizer
        self._count = 0
        self._text = ""  # what is held back; `_at` is where it begins in the whole text
        self._at = 0
        self._units: list[_Unit] = []
        self._open = _Unit([], [], 0)

    def feed(self, ids: list[int], entries: list[Any], last: bool) -> Output:
        out = Output()
        for at, token_id in enumerate(ids):
            known = len(self._text)
            self._count += 1
            self._text += self._detokenizer.feed([token_id])
            self._open.ids.append(token_id)
            self._open.entries += entries[at : at + 1]
            if not self._detokenizer.holds_bytes:
                self._close()
            if self._count > self._min and (end := self._find(known)) is not None:
                self._release(out, end)
                out.stopped = True
                return out
        if last:
            known = len(self._text)
            self._text += self._detokenizer.feed([], last=True)
            self._close()
            end = self._find(known) if self._count > self._min else None
            out.stopped = end is not None
            self._release(out, self._at + len(self._text) if end is None else end)
        else:
            self._release(out, self._at + len(self._text) - self._kept())
        return out

    def _close(self) -> None:
        self._open.end = self._at + len(self._text)
        self._units.append(self._open)
        self._open = _Unit([], [], 0)

    def _find(self, known: int) -> int | None:
        """Where the answer ends: at the stop string that is complete first in the text behind `known` characters."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            at = self._text.find(stop, max(0, known - len(stop) + 1))
            if at >= 0 and (best is None or at + len(stop) < best[0]):
                best = at + len(stop), at
        return None if best is None else self._at + best[0 if self._included else 1]

    def _kept(self) -> int:
        """How many of the last characters may begin a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._text)), 0, -1):
            tail = self._text[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0

    def _release(self, out: Output, end: int) -> None:
        out.text += self._text[: end - self._at]
        self._text, self._at = self._text[end - self._at :], end
        while self._units and self._units[0].end <= end:
            unit = self._units.pop(0)
            out.ids += unit.ids
            out.entries += unit.entries
