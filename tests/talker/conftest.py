"""Session fixtures: the tiny oracle model and its checkpoint on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.talker.tiny import build_model, save_model


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Keep float sums in one order, whatever the machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def oracle_model():
    return build_model()


@pytest.fixture(scope="session")
def talker_checkpoint(oracle_model, tmp_path_factory) -> Path:
    return save_model(oracle_model, tmp_path_factory.mktemp("talker_checkpoint"))
