from __future__ import annotations

import pytest

from tests.server import Server


@pytest.fixture(scope="session")
def server(tiny_checkpoint, tmp_path_factory):
    """One real tritonserver, with media, for all tests of the runner."""
    with Server(tiny_checkpoint, tmp_path_factory.mktemp("client") / "server.log", "cpu") as server:
        yield server
