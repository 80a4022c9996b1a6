"""What every engine speaks: how a stream ends, how codes are cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Finish:
    """How a stage ended a stream normally.

    `reason`: "stop" (the model ended it) or "length" (a limit did). `usage`: counts by name, such as
    `{"prompt_tokens": 20, "completion_tokens": 9}`, `{"frames": 120, "seed": 7}` or `{"samples": 230400}`. `notes`:
    what was done otherwise than asked, for the client.
    """

    reason: str
    usage: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChunkSchedule:
    """Sizes, in codec frames, of the chunks that the Talker sends to Code2Wav.

    The first chunk has `initial` frames. With `doubling` each next one is twice as large up to `steady`; without,
    every later chunk has `steady` frames. `steady` 0 means one chunk with the whole answer (full-payload mode).

    A burst may arrive between the choice of a small first chunk and that chunk's end, and the player would run dry
    before the second one. So the first chunk grows to `loaded_initial` frames when more than `idle_streams` streams are
    open by then; 0 leaves it as it is.
    """

    initial: int = 4
    steady: int = 25
    doubling: bool = False
    loaded_initial: int = 0
    idle_streams: int = 0

    def under(self, open_streams: int) -> ChunkSchedule:
        """The schedule for a first chunk that is complete while so many streams are open."""
        if self.steady == 0 or open_streams <= self.idle_streams or self.loaded_initial <= self.initial:
            return self
        return replace(self, initial=self.loaded_initial)

    def sizes(self) -> Iterator[int]:
        """Yield chunk sizes without end; a size of 0 asks for all frames until the end."""
        if self.steady == 0:
            while True:
                yield 0
        size = min(self.initial, self.steady)
        while True:
            yield size
            size = min(2 * size, self.steady) if self.doubling else self.steady
