"""One vLLM engine and one `transformers` Thinker for all tests of the Thinker."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from python_backends.config.sampling import ThinkerSampling
from python_backends.thinker.engine import MediaTensors, ThinkerEngine, ThinkerOptions, ThinkerRequest
from tests.thinker.recorder import Answer, Recorder

_numbers = itertools.count()
NO_MEDIA = MediaTensors()


class Server:
    """An engine with its recorder, and short forms for tests."""

    def __init__(self, options: ThinkerOptions) -> None:
        self.sink = Recorder()
        self.engine = ThinkerEngine(options, self.sink)

    def start(self, messages, *, seed=None, speak=True, media=NO_MEDIA, **sampling) -> str:
        stream_id = f"s{next(_numbers)}"
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        self.engine.add(ThinkerRequest(stream_id, messages, ThinkerSampling(**sampling), seed, speak, media))
        return stream_id

    def answer(self, messages, **options) -> Answer:
        return self.sink.wait(self.start(messages, **options))


class Servers:
    """Keeps one server at a time: the end of any vLLM engine takes the parallel state of its whole process along."""

    def __init__(self) -> None:
        self._options: ThinkerOptions | None = None
        self._server: Server | None = None

    def get(self, options: ThinkerOptions) -> Server:
        """The running server if it has these options, else a new one in its place."""
        if options != self._options:
            self.close()
            self._server, self._options = Server(options), options
        return self._server

    def close(self) -> None:
        if self._server is not None:
            server, self._server, self._options = self._server, None, None
            server.engine.close()
            assert server.sink.violations == []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a server stand together, so that each is started once."""

    def server_of(item: pytest.Item) -> int:
        fixtures = ("servers", "media_server", "server")  # the last two use the first
        return max((at for at, name in enumerate(fixtures, 1) if name in getattr(item, "fixturenames", ())), default=0)

    ours = [at for at, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    for at, item in zip(ours, sorted((items[at] for at in ours), key=server_of), strict=True):
        items[at] = item


@pytest.fixture(scope="session")
def servers():
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture
def media_server(servers: Servers, tiny_checkpoint: Path) -> Server:
    return servers.get(ThinkerOptions(model=str(tiny_checkpoint), dtype="float32"))


@pytest.fixture
def server(servers: Servers, tiny_checkpoint: Path) -> Server:
    return servers.get(ThinkerOptions(model=str(tiny_checkpoint), dtype="float32", media=None))


@pytest.fixture(scope="session")
def oracle(tiny_checkpoint: Path):
    from tests.thinker.oracle import ThinkerOracle

    return ThinkerOracle(tiny_checkpoint)
