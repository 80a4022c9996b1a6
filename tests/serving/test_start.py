"""A model that cannot be set up leaves word for those that wait."""

from __future__ import annotations

import importlib
import json
import sys
import time
import types

import pytest

from python_backends.config.deploy import load_deploy_config
from python_backends.config.errors import StageFailed
from python_backends.serving import start
from python_backends.serving.start import has_failed, wait_for_stages


@pytest.fixture
def omni(monkeypatch, tmp_path):
    """The module `omni_model`, which runs in Triton's stubs only."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", types.ModuleType("triton_python_backend_utils"))
    runtime_dir = tmp_path / "run"
    monkeypatch.setenv("OMNI_RUNTIME_DIR", str(runtime_dir))
    return importlib.import_module("python_backends.serving.omni_model"), runtime_dir


@pytest.mark.parametrize("line", ["deploy_config_of", "Replicas", "Orchestrator", "_limits", "wait_for_stages"])
def test_the_streaming_model_reports_its_own_failure(omni, monkeypatch, line):
    module, runtime_dir = omni

    def fail(*args, **kwargs):
        raise OSError("no more sockets")

    monkeypatch.setattr(module, line, fail)
    with pytest.raises(OSError, match="no more sockets"):
        module.OmniModel().initialize({"model_instance_name": "qwen3_omni_0_0", "model_config": json.dumps({})})
    assert has_failed(runtime_dir)
    with pytest.raises(StageFailed, match="no more sockets"):
        wait_for_stages(runtime_dir, {"thinker": None}, types.SimpleNamespace(keys=FAST, replicas={}))


def test_waiting_for_stages_ends_when_the_runtime_directory_is_removed(tmp_path):
    """Operating, runtime directory removed, while the server starts."""
    with pytest.raises(StageFailed, match="was removed while the stages were starting"):
        wait_for_stages(tmp_path / "gone", {"thinker": None}, types.SimpleNamespace(keys=FAST, replicas={}))


FAST = types.SimpleNamespace(stage_init_timeout_s=1.0)


def test_the_streaming_model_waits_as_long_as_engines_that_load_in_turn_may_take(monkeypatch, tmp_path):
    monkeypatch.setenv("OMNI_PLATFORM", "cuda")
    monkeypatch.setattr(start, "_GRACE_S", 0.0)
    deploy = load_deploy_config("one_gpu", ["stage_init_timeout_s=0.5"])
    nobody = types.SimpleNamespace(count=lambda: 0)
    started = time.monotonic()
    with pytest.raises(StageFailed, match="not ready in time"):
        wait_for_stages(tmp_path, {"thinker": nobody}, deploy)
    assert time.monotonic() - started >= 1.5, "three engines of one device, half a second each"
