"""Triton model repositories: the models, their tensors, one instance for each replica."""

from __future__ import annotations

from pathlib import Path

import yaml

from python_backends.config.deploy import STAGES, DeployConfig
from python_backends.config.media_inputs import INPUTS

BLS_MODEL = "qwen3_omni"
DEPLOY_FILE = "deploy.yaml"
DEPLOY_PARAMETER = "deploy_config"
_REQUEST = ("request", "TYPE_STRING", 1)
_TYPES = {"float32": "TYPE_FP32", "int32": "TYPE_INT32", "int64": "TYPE_INT64", "uint8": "TYPE_UINT8"}
_MEDIA = tuple((name, _TYPES[item.dtype], *item.dims) for name, item in INPUTS.items())
_TAKES_MEDIA = (BLS_MODEL, "thinker")
_BLS_OUTPUTS = (
    ("text", "TYPE_STRING", 1),
    ("audio", "TYPE_FP32", -1),
    ("audio_int16", "TYPE_INT16", -1),
    ("logprobs", "TYPE_STRING", 1),
    ("summary", "TYPE_STRING", 1),
)
_STAGE_OUTPUTS = (("reply", "TYPE_STRING", 1),)
_PATH_LINES = """import os
import sys
from pathlib import Path

# The stub ignores PYTHONPATH.
sys.path.insert(0, os.environ.get("OMNI_HOME") or {home})
"""
_STAGE_MODEL = """
from python_backends.serving.stage_model import StageModel


class TritonPythonModel(StageModel):
    stage = "{stage}"
"""
_BLS = """
from python_backends.serving.omni_model import OmniModel as TritonPythonModel  # noqa: F401
"""
_BESIDE = "str(Path(__file__).resolve().parents[3])"


def repository_files(config: DeployConfig | None = None, home: Path | None = None) -> dict[str, str]:
    """Paths in the repository and their contents.

    Without `config`: every model with one instance, for whatever configuration is chosen when the server starts. With
    it: the models that it needs, an instance for each replica, and the configuration itself. `home` is the directory
    with `python_backends`; None where the repository lies in it.
    """
    files = {}
    for name in (BLS_MODEL, *STAGES):
        if config is not None and name != BLS_MODEL and name not in config.stages:
            continue
        instances = len(config.replicas[name]) if config is not None and name in STAGES else 1
        files[f"{name}/config.pbtxt"] = _config_pbtxt(name, instances, config is not None)
        lines = _PATH_LINES.format(home=_BESIDE if home is None else repr(str(home)))
        files[f"{name}/1/model.py"] = _drop_path(lines, home) + (
            _BLS if name == BLS_MODEL else _STAGE_MODEL.format(stage=name)
        )
    if config is not None:
        files[DEPLOY_FILE] = yaml.safe_dump(config.raw, sort_keys=False)
    return files


def _drop_path(lines: str, home: Path | None) -> str:
    return lines if home is None else lines.replace("from pathlib import Path\n", "")


def _config_pbtxt(name: str, instances: int, has_deploy_file: bool) -> str:
    is_bls = name == BLS_MODEL
    lines = [f'name: "{name}"', 'backend: "python"', "max_batch_size: 0"]
    if is_bls:
        lines.append("model_transaction_policy { decoupled: true }")
    lines += _tensors("input", (_REQUEST,), _MEDIA if name in _TAKES_MEDIA else ())
    lines += _tensors("output", _BLS_OUTPUTS if is_bls else _STAGE_OUTPUTS)
    # The stub runs on the CPU; its engine process has the device.
    lines.append(f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]")
    if has_deploy_file:
        lines.append(f'parameters {{ key: "{DEPLOY_PARAMETER}" value: {{ string_value: "../{DEPLOY_FILE}" }} }}')
    return "\n".join(lines) + "\n"


def _tensors(word: str, tensors: tuple, optional: tuple = ()) -> list[str]:
    rows = [_tensor(*tensor) for tensor in tensors] + [_tensor(*tensor, more=" optional: true") for tensor in optional]
    return [f"{word} [", ",\n".join(rows), "]"]


def _tensor(name: str, kind: str, *dims: int, more: str = "") -> str:
    return f'  {{ name: "{name}" data_type: {kind} dims: [ {", ".join(map(str, dims))} ]{more} }}'


def write_repository(out: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
