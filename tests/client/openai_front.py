"""The HTTP server as a process of its own, for tests."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

from openai import DefaultHttpxClient, OpenAI

from scripts.benchmarks.server import free_port
from tests.server import PATIENT_S, ROOT, wait_until


class Front:
    """`python -m client.openai_server` in front of the server at `url`. Use as a context manager."""

    def __init__(self, url: str, *options: object, certificate: Path | None = None) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "client.openai_server", "--url", url, "--port", self.port, *options]
        self._command = [str(word) for word in command]
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.port}"
        self._tls = ssl.create_default_context(cafile=certificate) if certificate else None

        self._clients: list[OpenAI] = []

    def __enter__(self) -> Front:
        self.process = subprocess.Popen(self._command, cwd=ROOT, env=os.environ, stderr=subprocess.PIPE, text=True)
        wait_until(self._listens, PATIENT_S, "the HTTP server answers")
        return self

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.process.stderr.read()
        try:
            return bool(self.get("/metrics"))
        except OSError:
            return False

    def __exit__(self, *exc: object) -> None:
        # asyncio waits half a minute for the answer to the end of a TLS connection, which these would never send.
        for client in self._clients:
            client.close()
        self.process.send_signal(signal.SIGTERM)
        said = self.process.communicate(timeout=PATIENT_S)[1]
        assert self.process.returncode in (0, -signal.SIGTERM) and "Traceback" not in said, said

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=PATIENT_S, context=self._tls) as answer:
            return answer.read().decode()

    def client(self, key: str = "none") -> OpenAI:
        http = DefaultHttpxClient(verify=self._tls) if self._tls else None
        client = OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENT_S, http_client=http)
        self._clients.append(client)
        return client

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))
