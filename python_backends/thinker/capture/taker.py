"""From the capture buffer to host memory, off the model's stream."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from python_backends.thinker.capture.plan import Slice

log = logging.getLogger(__name__)

# stream, positions int64 [m], rows float32 [m, hidden]
SendRows = Callable[[str, np.ndarray, np.ndarray], None]


class RowTaker:
    """Copies slices of `buffer` and hands their rows to `send`.

    Asynchronous: a snapshot on the device is ordered before the next step writes the buffer, a side stream copies it to
    pinned memory, and a builder thread waits for the event and sends. With `synchronous` all of it happens before
    `take` returns; the rows are the same bits. Rows that are lost are sent with no columns.
    """

    def __init__(self, buffer: torch.Tensor, send: SendRows, synchronous: bool) -> None:
        self.synchronous = synchronous
        self._buffer = buffer
        self._send = send
        self._on_cuda = buffer.is_cuda
        self._stream: Any = torch.cuda.Stream(buffer.device) if self._on_cuda else None
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._build, name="thinker-rows", daemon=True)
        self._thread.start()
        if self._on_cuda and not synchronous:
            # Pinned memory is slow to get and is kept by the allocator: get it before the first request waits.
            torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)

    def take(self, slices: list[Slice]) -> None:
        for piece in slices:
            rows = self._buffer[piece.first : piece.stop]
            if self.synchronous:
                self._finish(piece, rows.to("cpu", copy=True), None)
                continue
            host, event = self._copy_behind(rows.clone())
            self._jobs.put((piece, host, event))

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _copy_behind(self, snapshot: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        if not self._on_cuda:
            return snapshot, None
        host = torch.empty(snapshot.shape, dtype=snapshot.dtype, pin_memory=True)
        # Blocking: the builder sleeps instead of spinning on the step loop's core.
        event = torch.cuda.Event(blocking=True)
        self._stream.wait_stream(torch.cuda.current_stream(snapshot.device))
        with torch.cuda.stream(self._stream):
            host.copy_(snapshot, non_blocking=True)
            event.record()
        # Its memory may not be given to a later step before the side stream has read it.
        snapshot.record_stream(self._stream)
        return host, event

    def _build(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._finish(*job)

    def _finish(self, piece: Slice, host: torch.Tensor, event: torch.cuda.Event | None) -> None:
        try:
            if event is not None:
                event.synchronize()
            wanted = host if len(piece.offsets) == len(host) else host[torch.from_numpy(piece.offsets)]
            rows = wanted.float().numpy()
        except Exception:
            log.exception("stream %s: hidden rows were lost", piece.stream)
            rows = np.empty((len(piece.positions), 0), dtype=np.float32)
        self._send(piece.stream, piece.positions, rows)
