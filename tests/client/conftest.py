from __future__ import annotations

import pytest

from tests.client.openai_front import Front
from tests.server import Server


@pytest.fixture(scope="session")
def server(tiny_checkpoint, tmp_path_factory):
    """One real tritonserver, with media, for all tests of the clients; it works on 20 requests and lets none wait."""
    directory = tmp_path_factory.mktemp("client")
    limited = directory / "deploy.yaml"
    limited.write_text("base_config: cpu\nmax_in_flight: 20\nmax_queued: 0\n")
    with Server(tiny_checkpoint, directory / "server.log", limited) as server:
        yield server


@pytest.fixture(scope="session")
def front(server):
    """OpenAI's HTTP API in front of it."""
    with Front(server.url) as front:
        yield front
