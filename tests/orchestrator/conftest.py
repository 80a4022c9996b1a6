import pytest

from python_backends.config.stage import ChunkSchedule
from python_backends.orchestrator.orchestrator import Orchestrator
from tests.orchestrator.stages import PlayedStages


@pytest.fixture
def stages(tmp_path):
    stages = PlayedStages(tmp_path)
    yield stages
    stages.close()


@pytest.fixture
def orchestrator(stages, tmp_path):
    orchestrator = Orchestrator(f"ipc://{tmp_path}/bls", stages.open, ChunkSchedule(4, 25))
    yield orchestrator
    orchestrator.close()
    assert len(orchestrator) == 0
