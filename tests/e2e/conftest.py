from __future__ import annotations

import pytest

from tests.oracle import Oracle
from tests.server import TEXT_ONLY, Server


@pytest.fixture(scope="session")
def server(tiny_checkpoint, tmp_path_factory):
    """One real tritonserver for all tests that do not harm it."""
    with Server(tiny_checkpoint, tmp_path_factory.mktemp("server") / "server.log", TEXT_ONLY) as server:
        yield server


@pytest.fixture(autouse=True)
def leaves_nothing_open(request):
    """Whatever a test does, every stage has freed its streams a little later."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").wait_idle(5)


@pytest.fixture(scope="session")
def oracle(tiny_checkpoint):
    return Oracle(tiny_checkpoint)
