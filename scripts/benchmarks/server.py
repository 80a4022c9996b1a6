"""The server under measurement: started with scripts/serve.sh, watched, stopped; and what its processes cost."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

ROOT = Path(__file__).resolve().parents[2]
SERVE = ROOT / "scripts" / "serve.sh"


def free_port() -> int:
    """Below those that the system gives to whoever asks for any: nobody takes it before the server does."""
    # Of the system's own randomness: two processes with one seed would draw the same.
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class BenchServer:
    """One server on free ports of 127.0.0.1. Use as a context manager.

    `model`: None is the script's own default. `cores`: the processors it may run on. `start_s` is how long it took to
    become ready. Raises RuntimeError with the end of its log when it does not.
    """

    def __init__(
        self,
        model: str | None,
        log: Path,
        deploy_config: Path | None = None,
        env: dict[str, str] | None = None,
        ready_s: float = 600.0,
        serve: Path = SERVE,
        cores: list[int] | None = None,
    ) -> None:
        self.log, self._ready_s, self._cores = log, ready_s, cores
        self._env = os.environ | (env or {})
        self.url = f"127.0.0.1:{free_port()}"
        ports = [self.url.rsplit(":", 1)[1], str(free_port()), str(free_port())]
        self._command = [str(serve)] + ([] if model is None else ["--model", str(model)])
        for flag, port in zip(("--grpc-port", "--http-port", "--metrics-port"), ports, strict=True):
            self._command += [flag, port]
        if deploy_config is not None:
            self._command += ["--deploy-config", str(deploy_config)]
        self.start_s = 0.0

    def __enter__(self) -> BenchServer:
        started = time.monotonic()
        # Without this a terminated benchmark would leave its server behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=self._env, start_new_session=True
            )
            if self._cores:
                # Before the script has started anything; what it starts inherits this.
                os.sched_setaffinity(self.process.pid, self._cores)
        try:
            self._wait_ready(started + self._ready_s)
        except BaseException:
            self.__exit__()
            raise
        self.start_s = time.monotonic() - started
        return self

    def _wait_ready(self, deadline: float) -> None:
        while not self._is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server was not ready within {self._ready_s:.0f} s:\n{self.tail()}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        host, port = self.url.rsplit(":", 1)
        try:
            # gRPC would wait longer and longer between its attempts to connect, in the end two minutes.
            socket.create_connection((host, int(port)), timeout=1).close()
            with triton.InferenceServerClient(self.url) as client:
                return client.is_model_ready("qwen3_omni")
        except (OSError, InferenceServerException):
            return False

    def __exit__(self, *exc) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of the server's processes, by role: `tritonserver`, `MODEL stub`, `MODEL engine`."""
        return process_cpu_seconds(self.process.pid)


def process_cpu_seconds(root: int) -> dict[str, float]:
    """CPU seconds of `root` and its descendants by role; a model's engine is any descendant of its stub."""
    tick = os.sysconf("SC_CLK_TCK")
    facts: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it ended meanwhile
            facts[int(entry.name)] = (int(words[1]), (int(words[11]) + int(words[12])) / tick)
    totals: dict[str, float] = {}
    for pid, (_, seconds) in facts.items():
        role = _role(pid, root, facts)
        if role is not None:
            totals[role] = totals.get(role, 0.0) + seconds
    return totals


def _role(pid: int, root: int, facts: dict[int, tuple[int, float]]) -> str | None:
    """The role of `pid`, None when it does not descend from `root`."""
    chain = [pid]
    while chain[-1] != root:
        parent = facts.get(chain[-1], (0, 0.0))[0]
        if parent == 0:
            return None
        chain.append(parent)
    for depth, ancestor in enumerate(chain):
        try:
            words = Path(f"/proc/{ancestor}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"triton_python_backend_stub" in words[0]:
            model = Path(words[1].decode()).parents[1].name
            return f"{model} engine" if depth else f"{model} stub"
    return "tritonserver"
