"""Supervises one engine process: start, hello, heartbeat, restart."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from python_backends.config.errors import StageFailed

log = logging.getLogger(__name__)
HEARTBEAT_LIMIT_S = 30.0
RESTART_PAUSE_S = (0.1, 1.0, 5.0, 15.0)
SHARED_MEMORY = Path("/dev/shm")
_GLANCE_MS = 50  # between two looks whether the process is to be ended
# How tritonserver is to free memory; an engine allocates in its own way.
FOR_TRITON_ALONE = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


@dataclass(frozen=True)
class EngineLaunch:
    """How to start the engine process of one replica.

    `instance` names the replica, such as talker-1. `python` is the interpreter with torch (and vLLM for the Thinker);
    `root` the directory with `python_backends`. `init_timeout_s` bounds its loading, at every start,
    without the time in which it waits for another engine on one of its `devices` to load. `triton`: the process id of
    the server that the engine's fork server ends when all stubs have died.
    """

    stage: str
    instance: str
    model: str
    python: str
    root: Path
    runtime_dir: Path
    init_timeout_s: float
    options: dict
    env: dict[str, str]
    memory_fraction: float | None = None
    devices: tuple[str, ...] = ()
    triton: int | None = None


class EngineSupervisor:
    """Keeps one engine process running. Thread-safe.

    `on_death(instance_epoch)` is called once for each process that ends unasked.
    """

    def __init__(self, launch: EngineLaunch, on_death: Callable[[str], None]) -> None:
        self._launch = launch
        self._on_death = on_death
        self._context: zmq.Context = zmq.Context.instance()
        self._epoch = 0
        self._process: subprocess.Popen | None = None  # the engine's fork server
        self._reports = self._report_to = -1  # the pipe it writes to: our end, and the number of its own end
        self._engine: int | None = None  # process and group id of the engine it has forked
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._has_served = False
        self._beat_at = 0.0
        self._reported = ""
        self._first_failure: str | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"supervise-{launch.instance}", daemon=True)

    @property
    def temporary_dir(self) -> Path:
        """The engine's TMPDIR: what its libraries leave there goes when the process has ended, however it did."""
        return self._launch.runtime_dir / self._launch.instance

    # ---- life -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the process; `wait_ready` waits for it."""
        for stale in self._launch.runtime_dir.glob(f"{self._launch.instance}-*"):
            stale.unlink()  # of a server that could not clean up
        self._remove_temporary_files()
        self._thread.start()

    def wait_ready(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait for the process's hello. Raises StageFailed that names the stage when it fails or takes too long.

        `given_up()` tells that nobody waits any more.
        """
        while not self._ready.wait(0.1):
            ended = not self._thread.is_alive()  # asked first: the thread leaves its failure before it ends
            if given_up():
                self.close()
                raise StageFailed(f"{self._launch.instance}: not started, because another stage failed")
            if self._first_failure is not None or ended:
                self.close()
                raise StageFailed(f"{self._launch.instance}: {self._first_failure or 'closed before it was ready'}")

    @property
    def instance_epoch(self) -> str:
        """Names the running process: it changes with every restart."""
        return f"{self._launch.instance}@{self._epoch}"

    def ask_to_end(self) -> None:
        """Ask the process to end; `close` waits for it."""
        self._closing.set()
        process = self._process  # the supervising thread may replace it meanwhile
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._engine or process.pid, signal.SIGTERM)

    def close(self, timeout_s: float = 3.0) -> None:
        """Ask the process to end, then end it with all its children."""
        self.ask_to_end()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.warning("%s did not end within %.0f s: killed", self._launch.instance, timeout_s)
                self._kill_group()
                self._thread.join(5)
        self._end_server()

    def _kill_group(self) -> None:
        """End the engine and its children; where it is not known, the fork server, with which it ends."""
        process, engine = self._process, self._engine
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine or process.pid, signal.SIGKILL)

    def _end_server(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None  # a pipe
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            os.close(self._reports)

    # ---- the supervising thread -------------------------------------------------------------------------------------
    def _supervise(self) -> None:
        failures = 0
        while not self._closing.is_set():
            started = time.monotonic()
            try:
                ended = self._run_once()
            except Exception as error:  # whatever it is: without this thread nobody starts the engine again
                log.exception("%s could not be run", self._launch.instance)
                ended = f"could not be run ({type(error).__name__}: {error})"
            if self._closing.is_set():
                return
            if not self._has_served:
                self._first_failure = self._reported or ended
                return
            failures = 0 if time.monotonic() - started > 60 else failures + 1
            pause = RESTART_PAUSE_S[min(max(failures - 1, 0), len(RESTART_PAUSE_S) - 1)]
            log.error("%s %s; restarting in %.1f s", self._launch.instance, ended, pause)
            self._closing.wait(pause)

    def _run_once(self) -> str:
        """Run one process from start to end; return how it ended, unless it said so itself."""
        self._epoch += 1
        self._reported = ""
        base = self._launch.runtime_dir / f"{self._launch.instance}-{self._epoch}"
        try:
            with self._context.socket(zmq.PULL) as socket:
                socket.setsockopt(zmq.LINGER, 0)
                socket.bind(f"ipc://{base}.ctl")
                if self._process is None:
                    self._start_server()
                self._start_engine(base)
                if self._closing.is_set():
                    self.ask_to_end()  # it may have come before there was a process
                code = self._watch(socket)
            was = "ended unasked" if self._has_served else "ended"
            before = "" if self._ready.is_set() else " before it was ready; see its log"
            return f"{was} with code {code}{before}"
        finally:
            was_ready = self._ready.is_set()
            self._ready.clear()
            self._kill_group()
            if self._engine is None:
                self._end_server()
            self._engine = None
            for suffix in ("ctl", "calls", "data"):
                Path(f"{base}.{suffix}").unlink(missing_ok=True)
            self._remove_temporary_files()
            if was_ready and not self._closing.is_set():
                self._on_death(self.instance_epoch)

    def _remove_temporary_files(self) -> None:
        """Remove the engine's TMPDIR, and the shared memory that vLLM's workers on a CPU name after a file in it."""
        for file in self.temporary_dir.glob("vllm_dist_*"):
            for shared in SHARED_MEMORY.glob(f"{file.name}*"):
                shared.unlink(missing_ok=True)
        shutil.rmtree(self.temporary_dir, ignore_errors=True)

    def _start_server(self) -> None:
        launch = self._launch
        inherited = {name: value for name, value in os.environ.items() if name not in FOR_TRITON_ALONE}
        environment = inherited | {"PYTHONPATH": str(launch.root), "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
        environment |= {"TMPDIR": str(self.temporary_dir)} | _compile_cache(inherited)
        if extra := os.environ.get("ENGINE_PYTHONPATH"):
            environment["PYTHONPATH"] += os.pathsep + extra
        self._reports, reports = os.pipe()
        try:
            self._process = subprocess.Popen(
                [launch.python, "-m", "python_backends.engine_host"],
                stdin=subprocess.PIPE,
                env=environment,
                cwd=launch.root,
                start_new_session=True,
                pass_fds=(reports,),
            )
        except BaseException:
            os.close(self._reports)
            raise
        finally:
            os.close(reports)
        self._report_to = reports

    def _start_engine(self, base: Path) -> None:
        launch, process = self._launch, self._process
        assert process is not None and process.stdin is not None
        self.temporary_dir.mkdir(mode=0o700, exist_ok=True)
        config = {
            "stage": launch.stage,
            "instance": self.instance_epoch,
            "model": launch.model,
            "control": f"ipc://{base}.ctl",
            "calls": f"ipc://{base}.calls",
            "data": f"ipc://{base}.data",
            "options": launch.options,
            "env": launch.env,
            "memory_fraction": launch.memory_fraction,
            "devices": launch.devices,
            "report": self._report_to,
            "triton": launch.triton,
        }
        try:
            process.stdin.write(json.dumps(config).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            log.error("%s ended at once", launch.instance)

    def _watch(self, socket: zmq.Socket) -> int | None:
        """Take what the process says until it has ended, which wakes this thread; end it when it has stalled.

        Returns its exit code; None when the fork server went with it.
        """
        code: int | None = None
        poller, lines = zmq.Poller(), b""
        poller.register(socket, zmq.POLLIN)
        poller.register(self._reports, zmq.POLLIN)
        self._beat_at = time.monotonic()
        closes_at = None
        while True:
            ready = [one for one, _ in poller.poll(_GLANCE_MS)]
            if socket in ready:
                self._take(socket)
            if self._reports in ready:
                part = os.read(self._reports, 4096)
                lines += part
                *whole, lines = lines.split(b"\n")
                for message in map(json.loads, whole):
                    self._engine = message.get("pid", self._engine)
                    code = message.get("code", code)
                if not part or code is not None:
                    break
            if self._closing.is_set():
                closes_at = closes_at or time.monotonic() + 10
                if time.monotonic() > closes_at:
                    break
            elif self._has_stalled():
                self._kill_group()
                self._beat_at = time.monotonic()
        if not self._ready.is_set() and socket.poll(_GLANCE_MS):
            self._take(socket)  # its last words may be why it failed
        if code is None:
            self._kill_group()  # the engine has ended with its server; its children have not
            self._engine, process = None, self._process
            code = process.wait(5) if process is not None and not self._closing.is_set() else None
        return code

    def _has_stalled(self) -> bool:
        """Whether the process takes too long to load, or has sent no heartbeat for too long."""
        silent = time.monotonic() - self._beat_at
        if self._ready.is_set():
            what, limit = f"has been silent for {silent:.0f} s", HEARTBEAT_LIMIT_S
        else:
            limit = self._launch.init_timeout_s
            what = f"was not ready within {limit:g} s; its log says how far it came"
        if silent <= limit:
            return False
        log.error("%s %s: killing it", self._launch.instance, what)
        self._reported = self._reported or what
        return True

    def _take(self, socket: zmq.Socket) -> None:
        """Take one hello, heartbeat, failure or word that it waits for a device, that has arrived."""
        message = msgspec.msgpack.decode(socket.recv())
        self._beat_at = time.monotonic()
        if "hello" in message:
            log.info("%s is ready after %.1f s", self._launch.instance, message["hello"]["load_s"])
            self._has_served = True
            self._ready.set()
        elif "failure" in message:
            self._reported = message["failure"]


def _compile_cache(environment: dict[str, str]) -> dict[str, str]:
    """Where torch keeps compiled kernels for the next start: by itself it would take TMPDIR."""
    home = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if "TORCHINDUCTOR_CACHE_DIR" in environment or not os.access(os.path.dirname(home), os.W_OK):
        return {}
    return {"TORCHINDUCTOR_CACHE_DIR": f"{home}/qwen3-omni/torchinductor"}
