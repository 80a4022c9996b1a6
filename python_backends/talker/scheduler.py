"""Which streams hold slots, which prompt rows come next, and which rows decode."""

from __future__ import annotations

from collections import deque

import numpy as np

from python_backends.talker.model.shapes import TokenIds
from python_backends.talker.options import TalkerOptions
from python_backends.talker.prompt import PrefillPart
from python_backends.talker.stream import TalkerStream


class Scheduler:
    """Engine thread only. Slots go to streams in the order in which their prompts came."""

    def __init__(self, options: TalkerOptions, ids: TokenIds) -> None:
        self._options, self._ids = options, ids
        self._free = list(range(options.max_num_seqs))[::-1]
        self.waiting: deque[TalkerStream] = deque()
        self.running: list[TalkerStream] = []

    def enqueue(self, stream: TalkerStream) -> None:
        """Queue a stream whose prompt has come."""
        self.waiting.append(stream)

    def admit(self) -> list[TalkerStream]:
        """Give free slots to waiting streams and return those."""
        admitted = []
        while self._free and self.waiting:
            stream = self.waiting.popleft()
            if not stream.ended:
                stream.slot = self._free.pop()
                self.running.append(stream)
                admitted.append(stream)
        return admitted

    def release_ended(self) -> list[TalkerStream]:
        """Take the slots of ended streams back; return the streams. Those that wait for a slot wait no longer."""
        if any(stream.ended for stream in self.waiting):
            self.waiting = deque(stream for stream in self.waiting if not stream.ended)
        ended = [stream for stream in self.running if stream.ended]
        if ended:
            self.running = [stream for stream in self.running if not stream.ended]
            for stream in ended:
                self._free.append(stream.place)
                stream.slot = None
        return ended

    def prefill_parts(self) -> list[PrefillPart]:
        """Pick prompt rows for one step, oldest stream first, `max_prefill_rows` in all.

        A batch-invariant engine cuts a prompt at multiples of `max_prefill_rows` from its own start.
        """
        budget = self._options.max_prefill_rows
        parts: list[PrefillPart] = []
        for stream in self.running:
            if not stream.prefilling or budget == 0:
                continue
            left = stream.laid_out.rows - stream.prefilled
            count = min(left, budget)
            if self._options.batch_invariant and count < min(left, self._options.max_prefill_rows):
                break
            parts.append(PrefillPart(stream.place, stream.laid_out, stream.prefilled, count))
            stream.prefilled += count
            budget -= count
        return parts

    def decode_rows(self) -> tuple[tuple[TalkerStream, ...], np.ndarray]:
        """Streams whose next text row is known and that may still speak.

        Gives them with their control rows int64 [n, 4] and counts the step as launched for each.
        """
        streams, rows = [], []
        for stream in self.running:
            if stream.ended or stream.prefilling or stream.launched >= stream.limit:
                continue
            text = stream.next_text(self._ids)
            if text is None:
                continue
            streams.append(stream)
            rows.append((stream.place, text, stream.laid_out.rows + stream.launched, stream.launched))
            stream.launched += 1
        return tuple(streams), np.array(rows, dtype=np.int64).reshape(-1, 4)


def widest_top_k(streams: tuple[TalkerStream, ...]) -> int:
    """Largest top-k of the rows, 0 when one of them keeps every code."""
    widths = [k for s in streams for k in (s.request.sampling.top_k, s.request.sampling.predictor_top_k)]
    return 0 if 0 in widths else max(widths, default=0)
