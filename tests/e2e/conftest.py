from __future__ import annotations

import pytest

from tests.oracle import Oracle
from tests.server import TEXT_ONLY, Server

SHARED = ("server", "replicas", "played", "media_server")


@pytest.fixture(scope="session")
def server(tiny_checkpoint, tmp_path_factory):
    """One real tritonserver for all tests; see `whole_servers` for those that harm it."""
    with Server(tiny_checkpoint, tmp_path_factory.mktemp("server") / "server.log", TEXT_ONLY) as server:
        yield server


@pytest.fixture(autouse=True)
def whole_servers(request):
    """The servers that a test shares with others, by the names of their fixtures, are whole before it; after it every
    stage has freed its streams. One that a test broke is so replaced before the next."""
    shared = [request.getfixturevalue(name) for name in SHARED if name in request.fixturenames]
    for server in shared:
        server.make_whole()
    yield
    for server in shared:
        if server.process.poll() is None:
            server.wait_idle()


@pytest.fixture(scope="session")
def oracle(tiny_checkpoint):
    return Oracle(tiny_checkpoint)
