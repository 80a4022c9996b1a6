"""Which rows of a step's batch are wanted: bookkeeping without a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Key of SamplingParams.extra_args under which a request asks for its rows; the value names the stream.
CAPTURE_ARG = "capture_rows"


@dataclass(frozen=True)
class Slice:
    """Rows `first` to `stop` of the batch hold wanted rows of `stream`.

    `positions` int64 [m]: their places in the prompt; `offsets` int64 [m]: where each stands within the slice.
    """

    stream: str
    first: int
    stop: int
    positions: np.ndarray
    offsets: np.ndarray


@dataclass
class _Wanted:
    stream: str
    # Ascending positions of media placeholders, and which of them were already taken.
    positions: np.ndarray
    taken: np.ndarray


class CapturePlan:
    """Follows requests through chunked prefill and preemption; every wanted position is taken once."""

    def __init__(self, media_ids: Iterable[int]) -> None:
        self._media_ids = np.array(sorted(media_ids), dtype=np.int64)
        self._wanted: dict[str, _Wanted] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def update(self, scheduler_output: Any) -> None:
        """Take in the step's new and finished requests (vLLM's SchedulerOutput)."""
        for request_id in scheduler_output.finished_req_ids:
            self._wanted.pop(request_id, None)
        for request in scheduler_output.scheduled_new_reqs:
            stream = (getattr(request.sampling_params, "extra_args", None) or {}).get(CAPTURE_ARG)
            # A preempted request may come back as a new one: what was taken stays taken.
            if stream is not None and request.req_id not in self._wanted:
                positions = np.flatnonzero(np.isin(request.prompt_token_ids, self._media_ids))
                self._wanted[request.req_id] = _Wanted(stream, positions, np.zeros(len(positions), dtype=bool))

    def slices(self, scheduler_output: Any, batch_order: Sequence[str]) -> list[Slice]:
        """Wanted rows of this step. `batch_order`: request ids in the order of their rows."""
        computed = {request.req_id: request.num_computed_tokens for request in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        found, row = [], 0
        for request_id in batch_order:
            count = scheduler_output.num_scheduled_tokens.get(request_id, 0)
            wanted = self._wanted.get(request_id)
            if wanted is not None and count:
                found += self._take(request_id, wanted, computed[request_id], count, row)
            row += count
        return found

    def _take(self, request_id: str, wanted: _Wanted, start: int, count: int, row: int) -> list[Slice]:
        low, high = np.searchsorted(wanted.positions, (start, start + count))
        chosen = low + np.flatnonzero(~wanted.taken[low:high])
        if not len(chosen):
            return []
        wanted.taken[chosen] = True
        if wanted.taken.all():
            del self._wanted[request_id]
        positions = wanted.positions[chosen]
        first, stop = int(positions[0]), int(positions[-1]) + 1
        return [Slice(wanted.stream, row + first - start, row + stop - start, positions, positions - first)]
