"""ChunkSender and ChunkReceiver over ZeroMQ: PUSH/PULL, ipc:// on one host, tcp:// between hosts."""

from __future__ import annotations

import socket as sockets
import threading
import time
from collections.abc import Callable, Sequence

import zmq

from python_backends.config.errors import StageFailed
from python_backends.connectors.chunk import Chunk, decode, encode

HIGH_WATER_MARK = 2000  # messages; a queue that is full blocks its producer's builder
_POLL_MS = 20


def is_gone(address: str) -> bool:
    """Whether nobody receives at `address` any more: its process has ended or has closed the socket.

    Only of `ipc://` can that be told; others count as there.
    """
    if not address.startswith("ipc://"):
        return False
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.removeprefix("ipc://"))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:  # such as one that is too busy to answer
            return False
    return False


class ChunkReceiver:
    """Binds one PULL socket and yields the chunks that arrive on it. Used from one thread.

    `address` may end in a wildcard port (`tcp://127.0.0.1:*`); `self.address` is what senders connect to.
    """

    def __init__(self, context: zmq.Context, address: str, high_water_mark: int = HIGH_WATER_MARK) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, high_water_mark)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, timeout_ms: int) -> list[Chunk]:
        """Return the chunks of one message, or an empty list after `timeout_ms`.

        Raises ProtocolError for a malformed message, which is dropped.
        """
        if not self.waiting() and not self._poller.poll(timeout_ms):
            return []
        return decode([frame.buffer for frame in self._socket.recv_multipart(copy=False)])

    def waiting(self) -> bool:
        """Whether a message has arrived that `receive` would return at once."""
        return bool(self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    def close(self) -> None:
        self._socket.close()


class ChunkSender:
    """Sends chunks to any number of addresses, one PUSH socket each. Thread-safe.

    A send that waits for room gives up after `timeout_s`.
    """

    def __init__(self, context: zmq.Context, timeout_s: float = 30.0, high_water_mark: int = HIGH_WATER_MARK) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._high_water_mark = high_water_mark
        self._sockets: dict[str, zmq.Socket] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._table_lock = threading.Lock()
        self._closed = False

    def _socket(self, address: str) -> tuple[zmq.Socket, threading.Lock]:
        with self._table_lock:
            if self._closed:
                raise StageFailed("the sender is closed")
            if address not in self._sockets:
                socket = self._context.socket(zmq.PUSH)
                socket.setsockopt(zmq.SNDHWM, self._high_water_mark)
                socket.setsockopt(zmq.LINGER, 0)
                # Queue only to a live connection: a message for a dead peer must wait here, where it can be given up.
                socket.setsockopt(zmq.IMMEDIATE, 1)
                socket.connect(address)
                self._sockets[address] = socket
                self._locks[address] = threading.Lock()
            return self._sockets[address], self._locks[address]

    def send(self, address: str, chunks: Sequence[Chunk], given_up: Callable[[], bool] = lambda: False) -> bool:
        """Send `chunks` as one message; block while the receiver's queue is full.

        `given_up()` tells whether nobody wants them any more, so that a receiver that died does not hold the sender:
        then the answer is False. Raises StageFailed after the timeout.
        """
        frames = encode(chunks)
        socket, lock = self._socket(address)
        deadline = time.monotonic() + self._timeout_s
        while True:
            with lock:
                if socket.closed:
                    raise StageFailed("the connection is closed")
                try:
                    socket.send_multipart(frames, zmq.NOBLOCK)
                    return True
                except zmq.Again:
                    socket.poll(_POLL_MS, zmq.POLLOUT)
            if given_up():
                return False
            if time.monotonic() > deadline:
                raise StageFailed(f"the next stage took nothing for {self._timeout_s:.0f} s")

    def disconnect(self, address: str) -> None:
        """Forget an address whose receiver is gone."""
        with self._table_lock:
            socket, lock = self._sockets.pop(address, None), self._locks.pop(address, None)
        if socket is not None and lock is not None:
            with lock:
                socket.close()

    def close(self) -> None:
        with self._table_lock:
            self._closed = True
            addresses = list(self._sockets)
        for address in addresses:
            self.disconnect(address)
