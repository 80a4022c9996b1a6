"""Hidden rows from the worker that has them to the engine: a call inside one process, a socket between two."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

# Names the receiver to the workers. Not part of vLLM's configuration: that is the key of its compile cache, and the
# port is another at each start.
ADDRESS_VARIABLE = "OMNI_HIDDEN_ROWS_ADDRESS"
_RAY_VARIABLES = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
_Receive = Callable[[str, np.ndarray, np.ndarray], None]
_local: dict[str, _Receive] = {}


class RowReceiver:
    """Passes rows to `receive`. Workers of tensor or pipeline parallelism, in processes of their own, connect to it.

    It listens on `VLLM_HOST_IP`, vLLM's own variable for work over several machines, else on the loopback address.
    """

    def __init__(self, receive: _Receive) -> None:
        import zmq

        self._receive = receive
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(f"tcp://{os.environ.get('VLLM_HOST_IP') or '127.0.0.1'}:*")
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        _local[self.address] = receive
        os.environ[ADDRESS_VARIABLE] = self.address
        copied = os.environ.get(_RAY_VARIABLES, "")
        if ADDRESS_VARIABLE not in copied:
            os.environ[_RAY_VARIABLES] = f"{copied},{ADDRESS_VARIABLE}".lstrip(",")
        self._thread = threading.Thread(target=self._run, name="thinker-row-receiver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        import zmq

        _local.pop(self.address, None)
        with self._context.socket(zmq.PUSH) as end:
            end.connect(self.address)
            end.send(b"")
        self._thread.join()
        self._socket.close(0)
        self._context.term()

    def _run(self) -> None:
        while True:
            parts = self._socket.recv_multipart()
            if len(parts) != 3:
                return
            stream, index, data = parts
            positions = np.frombuffer(index, dtype=np.int64)
            rows = np.frombuffer(data, dtype=np.float32).reshape(len(positions), -1)
            self._receive(stream.decode(), positions, rows)


class RowSender:
    """The worker's end of the RowReceiver that the environment names."""

    def __init__(self) -> None:
        address = os.environ[ADDRESS_VARIABLE]
        self._receive = _local.get(address)
        if self._receive is None:
            import zmq

            self._socket: zmq.Socket = zmq.Context.instance().socket(zmq.PUSH)
            self._socket.setsockopt(zmq.SNDHWM, 0)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.connect(address)

    def __call__(self, stream: str, positions: np.ndarray, rows: np.ndarray) -> None:
        if self._receive is not None:
            self._receive(stream, positions, rows)
            return
        body: list[Any] = [stream.encode(), np.ascontiguousarray(positions).data, np.ascontiguousarray(rows).data]
        self._socket.send_multipart(body, copy=False)
