"""The library: the documents' examples, without asyncio, deadlines, a second try, failures as events."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from client.chat import chat
from client.streaming import AGAIN_AFTER_S, AudioChunk, Failed, OmniClient, OmniClientError, Summary, TextDelta
from client.sync import SyncOmniClient
from tests.server import ROOT

SHORT = chat("Hello!", seed=5, sampling={"thinker": {"max_tokens": 8}, "talker": {"max_tokens": 12}})
LONG = chat(
    "Hello!",
    sampling={
        "thinker": {"ignore_eos": True, "max_tokens": 1500},
        "talker": {"ignore_eos": True, "max_tokens": 1500},
    },
)
DOCUMENTS = ("README.md", "docs/runner.md")


def examples() -> list[str]:
    found = []
    for name in DOCUMENTS:
        for block in re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL):
            if "client." in block:
                found.append(block)
    return found


def as_module(block: str) -> str:
    """An example as a module: what it awaits in a function, `play` for the reader's own."""
    given = (
        "import numpy as np\n\n\ndef play(samples: np.ndarray) -> None:\n    assert samples.dtype == np.float32\n\n\n"
    )
    imports = "".join(line + "\n" for line in block.splitlines() if line.startswith(("from ", "import ")))
    body = "".join(line + "\n" for line in block.splitlines() if not line.startswith(("from ", "import ")))
    if "async " not in body:
        return imports + given + body
    function = "async def main() -> None:\n" + textwrap.indent(body, "    ")
    return f"import asyncio\n{imports}{given}{function}\nasyncio.run(main())\n"


def test_the_examples_of_the_documents_run(server, tmp_path):
    """They are type-checked, with the client as a whole, and run against a real server."""
    assert len(examples()) >= 3
    for number, block in enumerate(examples()):
        example = tmp_path / f"example_{number}.py"
        example.write_text(as_module(block).replace("127.0.0.1:8001", server.url))
        done = subprocess.run([sys.executable, example], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "mypy", "--disallow-untyped-defs", "--ignore-missing-imports"]
    command += ["--cache-dir", tmp_path / "cache", ROOT / "client", *tmp_path.glob("example_*.py")]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_client_needs_no_torch():
    program = (
        "import importlib, pkgutil, sys, client\n"
        "for module in pkgutil.iter_modules(client.__path__):\n"
        "    importlib.import_module(f'client.{module.name}')\n"
        "sys.exit('torch' in sys.modules or any(name.startswith('python_backends') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_without_asyncio_the_answer_is_the_same(server):
    async def ask():
        async with OmniClient(server.url) as client:
            return await client.ask(SHORT)

    expected = asyncio.run(ask())
    with SyncOmniClient(server.url) as client:
        client.wait_ready(60)
        events = list(client.stream(SHORT))
        assert client.ask(SHORT).text == expected.text
    assert isinstance(events[-1], Summary)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == expected.text
    heard = [event.samples for event in events if isinstance(event, AudioChunk)]
    np.testing.assert_allclose(np.concatenate(heard), expected.audio, atol=1e-5)
    client.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "omni client"]


def test_leaving_the_loop_early_frees_the_request(server):
    """Closing an iterator cancels the call; so does closing the client beside one that is still read."""
    with SyncOmniClient(server.url) as client:
        for event in client.stream(LONG):
            assert isinstance(event, TextDelta)
            break
        server.wait_idle(10)
        left = client.stream(LONG)
        next(left)
    server.wait_idle(10)
    with pytest.raises(RuntimeError):
        next(left)


def test_a_deadline_cancels_its_request_alone(server):
    with SyncOmniClient(server.url) as client:
        with pytest.raises(OmniClientError) as caught:
            client.ask(LONG, deadline_s=1.0)
        assert caught.value.code == "timeout"
        server.wait_idle(10)
        assert client.ask(SHORT, deadline_s=300).text


def test_results_and_errors_side_by_side(server):
    """`events`: a failure is the last event of its own request."""
    bad = chat("Hello!", speaker="nobody")
    with SyncOmniClient(server.url) as client:
        ends = [list(client.events(body))[-1] for body in (SHORT, bad, SHORT)]
    assert [type(event) for event in ends] == [Summary, Failed, Summary]
    assert ends[1].code == "invalid_request" and "speaker" in ends[1].reason


class Gate:
    """Passes connections on to a server; the first `broken` break at once."""

    def __init__(self, url: str, broken: int, after: int = 0) -> None:
        self._target, self._broken, self._after = url, broken, after
        self.tried = 0

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.url = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc) -> None:
        self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tried += 1
        if self.tried <= self._broken:
            writer.close()
            return
        host, port = self._target.rsplit(":", 1)
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer, self._after), return_exceptions=True)
        writer.close()
        back.close()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, limit: int = 0) -> None:
        passed = 0
        while data := await source.read(65536):
            passed += len(data)
            if limit and passed > limit:
                sink.transport.abort()
                return
            sink.write(data)
            await sink.drain()
        sink.close()


def test_a_connection_that_breaks_at_once_is_tried_again(server):
    """Twice, with a wait; after the first response it is an error."""

    async def run():
        async with Gate(server.url, broken=len(AGAIN_AFTER_S)) as gate, OmniClient(gate.url) as client:
            assert (await client.ask(SHORT)).text
        async with Gate(server.url, broken=0, after=20_000) as gate, OmniClient(gate.url) as client:
            events = []
            with pytest.raises(OmniClientError) as caught:
                async for event in client.stream(LONG):
                    events.append(event)
            assert events and caught.value.code == "disconnected" and gate.tried == 1

    asyncio.run(run())
    server.wait_idle(10)


def test_a_connection_that_never_holds_is_an_error():
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as probe:
            url = f"127.0.0.1:{probe.getsockname()[1]}"
        async with OmniClient(url) as client:
            with pytest.raises(OmniClientError) as caught:
                await client.ask(SHORT)
        assert caught.value.code == "disconnected"

    asyncio.run(run())
