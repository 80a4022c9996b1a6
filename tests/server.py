"""A real tritonserver for tests: started by scripts/serve.sh, watched, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from client.streaming import OmniClient
from scripts.benchmarks.server import free_port

ROOT = Path(__file__).resolve().parents[1]
TEXT_ONLY = ROOT / "tests" / "e2e" / "text_only.yaml"
STAGES = ("thinker", "talker", "code2wav")
# How long to wait for what takes a moment on an idle machine: a bound says that it comes, not how fast.
PATIENT_S = 60.0
STOP_S = 90.0  # scripts/serve.sh kills a server long before this
RESTART_S = 300.0
SOONER_S = 20.0  # an engine that hangs is killed after 30 s: one that has died is not waited for


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll `condition`; fail with `what` after `timeout_s`, and not before PATIENT_S."""
    timeout_s = max(timeout_s, PATIENT_S)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


class Server:
    """One server on free ports of 127.0.0.1. Use as a context manager. `options`: more of tritonserver's own."""

    def __init__(
        self,
        model: Path,
        log: Path,
        deploy_config: Path | str | None = None,
        ready_s: float = 600,
        env: dict[str, str] | None = None,
        root: Path = ROOT,
        options: Sequence[str] = (),
    ) -> None:
        self.log, self._ready_s = log, ready_s
        self.grpc_port, self.http_port, self.metrics_port = free_port(), free_port(), free_port()
        # The server ends with the test process, also when that is killed: xdist gives its workers no time to clean up.
        command = ["setpriv", "--pdeathsig", "TERM", root / "scripts" / "serve.sh"]
        command += ["--model", model, "--grpc-port", self.grpc_port]
        command += ["--http-port", self.http_port, "--metrics-port", self.metrics_port]
        if deploy_config is not None:
            command += ["--deploy-config", deploy_config]
        if options:
            command += ["--", *options]
        self._env = os.environ | (env or {})
        self._command = [str(word) for word in command]

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def __enter__(self) -> Server:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
                env=self._env,
            )  # fmt: skip
        try:
            asyncio.run(self._wait_ready())
        except BaseException:
            self.stop()
            raise
        self.control = triton.InferenceServerClient(self.url)
        self._at_start = self._open_streams()
        return self

    async def _wait_ready(self) -> None:
        async with OmniClient(self.url) as client:
            waiting = asyncio.ensure_future(client.wait_ready(self._ready_s))
            while not waiting.done():
                await asyncio.wait([waiting], timeout=0.5)
                if self.process.poll() is not None:
                    waiting.cancel()
                    raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.tail()}")
            if waiting.exception():
                raise AssertionError(f"the server did not become ready:\n{self.tail()}")

    def __exit__(self, *exc) -> None:
        self.stop()

    def stop(self) -> None:
        """The second time there is nothing to stop."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                raise AssertionError(f"the server did not stop within {STOP_S} s:\n{self.tail()}") from None
            assert self.process.returncode == 0, f"it stopped with {self.process.returncode}:\n{self.tail()}"

    def is_whole(self) -> bool:
        """Whether it runs, is ready, and has every replica that it started with, idle."""
        if self.process.poll() is not None:
            return False
        try:
            return self.control.is_server_ready() and self._open_streams() == self._at_start
        except InferenceServerException:
            return False

    def _open_streams(self) -> dict[str, list[int]]:
        """Streams open on each replica that runs, by stage."""
        found = {}
        for stage in STAGES:
            with contextlib.suppress(InferenceServerException):
                found[stage] = [replica["open"] for replica in self._ask(stage)["replicas"]]
        return found

    def make_whole(self) -> None:
        """Let it mend itself after what a test did to it; start another in its place when it does not."""
        deadline = time.monotonic() + RESTART_S
        while not self.is_whole():
            if self.process.poll() is not None or time.monotonic() > deadline:
                with contextlib.suppress(AssertionError):
                    self.stop()
                self.__enter__()
                return
            time.sleep(0.1)

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def status(self, stage: str) -> dict:
        """Counts of one stage's engine process: `open` streams, `pid`, `threads` and the engine's own.

        Waits for an engine that is being restarted.
        """
        deadline = time.monotonic() + PATIENT_S
        while True:
            try:
                return self._ask(stage)
            except InferenceServerException as error:
                if "is being restarted" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _ask(self, stage: str) -> dict:
        tensor = triton.InferInput("request", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b'{"op": "status"}'], dtype=np.object_))
        return json.loads(self.control.infer(stage, [tensor]).as_numpy("reply")[0])

    def idle(self) -> bool:
        return all(self.status(stage)["open"] == 0 for stage in STAGES)

    def wait_idle(self, timeout_s: float = PATIENT_S) -> None:
        wait_until(self.idle, timeout_s, "every stage has freed its streams")

    def resources(self) -> dict[str, int]:
        """Threads and open file descriptors of the engine processes and of the stubs."""
        counts = {}
        for stage in STAGES:
            pid = self.status(stage)["pid"]
            stub = pid
            for _ in ("its fork server", "the stub"):
                stub = int(Path(f"/proc/{stub}/stat").read_text().rsplit(")", 1)[1].split()[1])
            for name, process in ((stage, pid), (f"{stage} stub", stub)):
                counts[f"{name} threads"] = len(list(Path(f"/proc/{process}/task").iterdir()))
                counts[f"{name} descriptors"] = len(list(Path(f"/proc/{process}/fd").iterdir()))
        return counts
