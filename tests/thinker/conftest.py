"""One vLLM engine and one `transformers` Thinker for all tests of the Thinker."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from python_backends.config.sampling import ThinkerSampling
from python_backends.thinker.engine import MediaTensors, ThinkerEngine, ThinkerOptions, ThinkerRequest
from python_backends.thinker.torchvision_ops import declare_missing_ops
from tests.thinker.recorder import Answer, Recorder

declare_missing_ops()
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


@pytest.fixture(scope="session")
def media_server(tiny_checkpoint: Path):
    server = Server(ThinkerOptions(model=str(tiny_checkpoint), dtype="float32"))
    yield server
    server.engine.close()
    assert server.sink.violations == []


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path):
    server = Server(ThinkerOptions(model=str(tiny_checkpoint), dtype="float32", media=None))
    yield server
    server.engine.close()
    assert server.sink.violations == []


@pytest.fixture(scope="session")
def oracle(tiny_checkpoint: Path):
    from tests.thinker.oracle import ThinkerOracle

    return ThinkerOracle(tiny_checkpoint)
