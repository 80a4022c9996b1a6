"""Supervises one engine process: start, hello, heartbeat, calls, restart."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgpack
import zmq

from python_backends.config.errors import OmniError, StageFailed

log = logging.getLogger(__name__)
HEARTBEAT_LIMIT_S = 30.0
RESTART_PAUSE_S = (0.1, 1.0, 5.0, 15.0)


@dataclass(frozen=True)
class EngineLaunch:
    """How to start the engine process of one stage instance.

    `python` is the interpreter with torch (and vLLM for the Thinker); `root` the directory with `python_backends`.
    """

    stage: str
    instance: str
    model: str
    python: str
    root: Path
    runtime_dir: Path
    options: dict
    env: dict[str, str]


class EngineSupervisor:
    """Keeps one engine process running and carries calls to it. Thread-safe.

    `on_death(instance_epoch)` is called once for each process that ends unasked.
    """

    def __init__(self, launch: EngineLaunch, on_death: Callable[[str], None]) -> None:
        self._launch = launch
        self._on_death = on_death
        self._context = zmq.Context.instance()
        self._epoch = 0
        self._process: subprocess.Popen | None = None
        self._caller: tuple[str, zmq.Socket] | None = None
        self._call_lock = threading.Lock()
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._call_ids = itertools.count()
        self._hello: dict = {}
        self._beat_at = 0.0
        self._first_exit: int | None = None
        self.last_stats: dict = {}
        self._thread = threading.Thread(target=self._supervise, name=f"supervise-{launch.instance}", daemon=True)

    # ---- life -----------------------------------------------------------------------------------------------------
    def start(self, timeout_s: float) -> None:
        """Start the process and wait for its hello. Raises StageFailed with the stage's name after `timeout_s`."""
        self._thread.start()
        deadline = time.monotonic() + timeout_s
        while not self._ready.wait(0.1):
            if self._first_exit is not None:
                self.close()
                raise StageFailed(
                    f"{self._launch.stage} ended with code {self._first_exit} before it was ready; see its log"
                )
            if time.monotonic() > deadline:
                self.close()
                raise StageFailed(
                    f"{self._launch.stage} was not ready within {timeout_s:.0f} s; its log above says how far it came"
                )

    @property
    def instance_epoch(self) -> str:
        """Names the running process: it changes with every restart."""
        return f"{self._launch.instance}@{self._epoch}"

    @property
    def data_address(self) -> str:
        return self._hello["data"]

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def close(self, timeout_s: float = 3.0) -> None:
        """Ask the process to end, then end it with all its children."""
        self._closing.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                log.warning("%s did not end within %.0f s: killed", self._launch.instance, timeout_s)
        self._kill_group()
        if self._thread.is_alive():
            self._thread.join(5)

    def _kill_group(self) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    # ---- calls ----------------------------------------------------------------------------------------------------
    def call(self, op: str, payload: dict, timeout_s: float) -> dict:
        """Call the engine process. Raises its OmniError, or StageFailed when it is not there or does not answer."""
        with self._call_lock:
            if not self._ready.is_set():
                raise StageFailed(f"{self._launch.stage} is not running; it is being restarted")
            socket = self._call_socket()
            call_id = next(self._call_ids)
            socket.send(msgpack.packb({"id": call_id, "op": op, "payload": payload}), zmq.NOBLOCK)
            answer = self._await_answer(socket, call_id, time.monotonic() + timeout_s)
        if answer is None:
            raise StageFailed(f"{self._launch.stage} died or did not answer within {timeout_s:.0f} s")
        if "error" in answer:
            raise OmniError(answer["error"]["message"], answer["error"]["code"])
        return answer["ok"]

    def _call_socket(self) -> zmq.Socket:
        """The socket to the running process; a new process has a new address."""
        address = self._hello["calls"]
        if self._caller is None or self._caller[0] != address:
            if self._caller is not None:
                self._caller[1].close()
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(address)
            self._caller = (address, socket)
        return self._caller[1]

    def _await_answer(self, socket: zmq.Socket, call_id: int, deadline: float) -> dict | None:
        while self._ready.is_set() and time.monotonic() < deadline:
            if socket.poll(50):
                answer = msgpack.unpackb(socket.recv())
                if answer["id"] == call_id:  # an earlier call that timed out may still be answered
                    return answer
        return None

    # ---- the supervising thread -------------------------------------------------------------------------------------
    def _supervise(self) -> None:
        failures = 0
        while not self._closing.is_set():
            started = time.monotonic()
            self._run_once()
            if not self._hello:
                self._first_exit = self._process.returncode
                return
            if self._closing.is_set():
                return
            failures = 0 if time.monotonic() - started > 60 else failures + 1
            pause = RESTART_PAUSE_S[min(max(failures - 1, 0), len(RESTART_PAUSE_S) - 1)]
            log.error("%s ended unasked; restarting in %.1f s", self._launch.instance, pause)
            self._closing.wait(pause)

    def _run_once(self) -> None:
        """Run one process from start to end."""
        launch = self._launch
        self._epoch += 1
        base = launch.runtime_dir / f"{launch.instance}-{self._epoch}"
        control = f"ipc://{base}.ctl"
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(control)
        config = {
            "stage": launch.stage,
            "instance": launch.instance,
            "model": launch.model,
            "control": control,
            "calls": f"ipc://{base}.calls",
            "data": f"ipc://{base}.data",
            "options": launch.options,
            "env": launch.env,
        }
        environment = os.environ | {"PYTHONPATH": str(launch.root), "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
        if extra := os.environ.get("ENGINE_PYTHONPATH"):
            environment["PYTHONPATH"] += os.pathsep + extra
        process = subprocess.Popen(
            [launch.python, "-m", "python_backends.engine_host"],
            stdin=subprocess.PIPE,
            env=environment,
            cwd=launch.root,
            start_new_session=True,
        )
        self._process = process
        exited = threading.Event()
        threading.Thread(target=lambda: (process.wait(), exited.set()), daemon=True).start()
        try:
            process.stdin.write(json.dumps(config).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            log.error("%s ended at once", launch.instance)
        self._beat_at = time.monotonic()
        while not exited.is_set() and not self._closing.is_set():
            self._pump(socket)
            if self._ready.is_set() and time.monotonic() - self._beat_at > HEARTBEAT_LIMIT_S:
                log.error("%s has been silent for %.0f s: killing it", launch.instance, HEARTBEAT_LIMIT_S)
                self._kill_group()
                exited.wait(5)
        if self._closing.is_set():
            exited.wait(10)
        was_ready = self._ready.is_set()
        self._ready.clear()
        socket.close()
        self._kill_group()
        for suffix in ("ctl", "calls", "data"):
            Path(f"{base}.{suffix}").unlink(missing_ok=True)
        if was_ready and not self._closing.is_set():
            self._on_death(self.instance_epoch)

    def _pump(self, socket: zmq.Socket) -> None:
        """Take one hello or heartbeat, waiting 50 ms at most."""
        if not socket.poll(50):
            return
        message = msgpack.unpackb(socket.recv())
        self._beat_at = time.monotonic()
        if "hello" in message:
            self._hello = message["hello"]
            log.info("%s is ready after %.1f s", self._launch.instance, self._hello["load_s"])
            self._ready.set()
        else:
            self.last_stats = message["heartbeat"]
