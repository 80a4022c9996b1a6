"""What only a GPU can show: compiled kernels, captured graphs, pinned copies. Run by `scripts/test_gpu.sh`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scripts.tiny_checkpoint.config import PUBLISHED
from tests.code2wav.conftest import (  # noqa: F401 (fixtures)
    code2wav_checkpoint,
    code2wav_config,
    code2wav_tensors,
    random_codes,
    reference,
    sink,
)
from tests.talker.conftest import oracle_model, talker_checkpoint  # noqa: F401 (fixtures)

DEVICE = "cuda"
LAYERS = 2


def pytest_sessionstart(session):
    if not torch.cuda.is_available():
        pytest.exit("tests/gpu needs a CUDA device", returncode=1)


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def published_widths(tmp_path_factory) -> Path:
    """A config.json with the published widths of the Talker, and two layers of each kind."""
    config = json.loads(PUBLISHED.read_text())
    for name in ("text_config", "code_predictor_config"):
        part = config["talker_config"][name]
        part["num_hidden_layers"] = LAYERS
        if part.get("layer_types"):
            part["layer_types"] = part["layer_types"][:LAYERS]
    target = tmp_path_factory.mktemp("published") / "config.json"
    target.write_text(json.dumps(config))
    return target
