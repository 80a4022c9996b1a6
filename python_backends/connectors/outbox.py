"""The way out of a process: what waits for one destination leaves as one message."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

from python_backends.config.errors import StageFailed
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.zmq_link import ChunkSender

log = logging.getLogger(__name__)
CAPACITY = 8192  # chunks that may wait for one destination


class Outbox:
    """A queue and a thread for each destination, so that one that takes nothing holds up no other. Thread-safe.

    What an engine's step posts chunk by chunk gathers while the thread sends what came before: a busy engine sends few,
    large messages and an idle one sends each chunk at once. `failed(stream_id, error)` is called for each stream whose
    chunks could not be delivered.
    """

    def __init__(
        self, sender: ChunkSender, failed: Callable[[str, StageFailed], object], capacity: int = CAPACITY
    ) -> None:
        self._sender = sender
        self._failed = failed
        self._capacity = capacity
        self._queues: dict[str, list[Chunk]] = {}
        self._under_way: Counter[str] = Counter()
        self._withdrawn: set[str] = set()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads: dict[str, threading.Thread] = {}
        self._closed = False

    def put(self, address: str, chunk: Chunk) -> None:
        """Queue a chunk; block while the destination's queue is full."""
        with self._lock:
            while len(self._queues.get(address, ())) >= self._capacity and not self._closed:
                self._changed.wait()
            self._under_way[chunk.stream_id] += 1
            self._queues.setdefault(address, []).append(chunk)
            if address not in self._threads:
                thread = threading.Thread(target=self._run, args=(address,), name="outbox", daemon=True)
                self._threads[address] = thread
                thread.start()
            self._changed.notify_all()

    def withdraw(self, stream_id: str) -> None:
        """Nobody wants this stream's chunks any more: those that have not left yet need not."""
        with self._lock:
            if stream_id in self._under_way:
                self._withdrawn.add(stream_id)

    def destinations(self) -> list[str]:
        """Addresses that have a thread and a connection."""
        with self._lock:
            return list(self._threads)

    def abandon(self, address: str) -> None:
        """The destination is gone: what waits for it is dropped, its thread and its connection end."""
        with self._lock:
            self._threads.pop(address, None)
            self._forget(self._queues.pop(address, []))
            self._changed.notify_all()
        self._sender.disconnect(address)

    def _run(self, address: str) -> None:
        while True:
            with self._lock:
                while not self._queues.get(address):
                    if self._closed or not self._serves(address):
                        return
                    self._changed.wait()
                if not self._serves(address):
                    return
                chunks = self._queues.pop(address)
                self._changed.notify_all()
            if self._deliver(address, chunks):
                continue
            with self._lock:
                if not self._serves(address):
                    return
            # The destination is dead or gone: a later chunk for it starts afresh.
            self._sender.disconnect(address)
            with self._lock:
                if self._serves(address) and not self._queues.get(address):
                    del self._threads[address]
                    return

    def _serves(self, address: str) -> bool:
        """Whether this is the thread of `address`, which may have been abandoned and got another since."""
        return self._threads.get(address) is threading.current_thread()

    def _deliver(self, address: str, chunks: list[Chunk]) -> bool:
        """Send; False when the destination took nothing."""
        sent = True
        try:
            wanted = [chunk for chunk in chunks if chunk.stream_id not in self._withdrawn]
            if wanted:
                sent = self._sender.send(address, wanted, lambda: self._unwanted(address, wanted))
        except StageFailed as error:
            log.error("%d chunks were not delivered to %s: %s", len(wanted), address, error)
            for stream_id in {chunk.stream_id for chunk in wanted}:
                self._failed(stream_id, error)
            sent = False
        with self._lock:
            self._forget(chunks)
        return sent

    def _forget(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._under_way[chunk.stream_id] -= 1
            if not self._under_way[chunk.stream_id]:
                del self._under_way[chunk.stream_id]
                self._withdrawn.discard(chunk.stream_id)

    def _unwanted(self, address: str, chunks: list[Chunk]) -> bool:
        gone = self._closed or not self._serves(address)
        return gone or all(chunk.stream_id in self._withdrawn for chunk in chunks)

    def close(self) -> None:
        """Send what is queued, without waiting for room, and end the threads."""
        with self._lock:
            self._closed = True
            threads = list(self._threads.values())
            self._changed.notify_all()
        for thread in threads:
            thread.join(2)
