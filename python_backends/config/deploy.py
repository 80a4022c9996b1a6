"""Deploy configuration: which device each stage runs on and how it is set up. One YAML file a profile."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from python_backends.config.sampling import TalkerSampling, ThinkerSampling, sampling_from_dict
from python_backends.config.stage import ChunkSchedule

PROFILES = Path(__file__).parent / "profiles"
STAGES = ("thinker", "talker", "code2wav")


class DeployError(ValueError):
    """The deploy YAML is wrong; the message names file, key and what is allowed."""


@dataclass(frozen=True)
class StageDeploy:
    """One stage: `device` is "cpu" or a CUDA index such as "0"; `options` are fields of its engine's options."""

    device: str = "cpu"
    options: dict = field(default_factory=dict)
    sampling: dict = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """Variables that the engine process sets before anything touches CUDA."""
        return {} if self.device == "cpu" else {"CUDA_VISIBLE_DEVICES": self.device}

    @property
    def engine_options(self) -> dict:
        return {"device": "cpu" if self.device == "cpu" else "cuda", **self.options}


@dataclass(frozen=True)
class DeployConfig:
    """`first_chunk_frames` "auto" lets Code2Wav choose by its load; chunks then double up to `codec_chunk_frames`."""

    initial_codec_chunk_frames: int | str = 4
    codec_chunk_frames: int = 25
    stage_init_timeout_s: float = 600.0
    thinker: StageDeploy = field(default_factory=StageDeploy)
    talker: StageDeploy = field(default_factory=StageDeploy)
    code2wav: StageDeploy = field(default_factory=StageDeploy)

    @property
    def schedule(self) -> ChunkSchedule:
        initial = 1 if self.adaptive_first_chunk else self.initial_codec_chunk_frames
        return ChunkSchedule(initial, self.codec_chunk_frames, doubling=self.adaptive_first_chunk)

    @property
    def adaptive_first_chunk(self) -> bool:
        return self.initial_codec_chunk_frames == "auto"

    @property
    def sampling_defaults(self) -> dict[str, dict]:
        return {name: getattr(self, name).sampling for name in STAGES if getattr(self, name).sampling}


def default_profile() -> Path:
    """`one_gpu` where the machine has an NVIDIA GPU, else `cpu`."""
    return PROFILES / ("one_gpu.yaml" if shutil.which("nvidia-smi") else "cpu.yaml")


def load_deploy_config(path: str | Path | None = None) -> DeployConfig:
    """Read the YAML at `path`, else at `OMNI_DEPLOY_CONFIG`, else the default profile. Raises DeployError."""
    path = Path(path or os.environ.get("OMNI_DEPLOY_CONFIG") or default_profile())
    try:
        body = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise DeployError(f"{path}: {error}") from None
    if not isinstance(body, dict):
        raise DeployError(f"{path}: must be a mapping")
    values = _known(body, DeployConfig, str(path))
    for name in STAGES:
        if name in values:
            values[name] = StageDeploy(**_known(values[name], StageDeploy, f"{path}: {name}"))
    config = DeployConfig(**values)
    try:
        sampling_from_dict(ThinkerSampling, config.thinker.sampling, "thinker.sampling")
        sampling_from_dict(TalkerSampling, config.talker.sampling, "talker.sampling")
    except ValueError as error:
        raise DeployError(f"{path}: {error}") from None
    return config


def _known(values: object, cls: type, where: str) -> dict:
    if not isinstance(values, dict):
        raise DeployError(f"{where}: must be a mapping")
    allowed = [f.name for f in fields(cls)]
    for key in values:
        if key not in allowed:
            raise DeployError(f"{where}: unknown key {key!r}; allowed: {', '.join(allowed)}")
    return dict(values)
