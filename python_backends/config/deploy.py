"""Deploy configuration: one YAML file says how the server runs. `load_deploy_config` is the only way in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from python_backends.config.deploy_keys import ConnectorExtra, DeployKeys, check_keys
from python_backends.config.deploy_layers import DeployError, apply_platform, apply_settings, find_profile, read_layers
from python_backends.config.engine_options import Replica, replica_of
from python_backends.config.errors import InvalidRequest
from python_backends.config.placement import check_memory, devices_of_replicas
from python_backends.config.platforms import detect_platform
from python_backends.config.sampling import TalkerSampling, ThinkerSampling, sampling_from_dict
from python_backends.config.schema import SchemaError, keys_of
from python_backends.config.stage import ChunkSchedule
from python_backends.config.stage_keys import STAGES, Code2WavKeys, StageKeys, TalkerKeys
from python_backends.config.vllm_omni import TRANSPORTS, UNREAD_BY_STAGES, applied

__all__ = ["STAGES", "DeployConfig", "DeployError", "default_profile", "load_deploy_config"]
_SAMPLING = {"thinker": ThinkerSampling, "talker": TalkerSampling}
_UNUSED_SAMPLING = ("detokenize",)
# `auto`: the first chunk has one frame while so many streams are open, and otherwise as many frames as here.
IDLE_STREAMS = 4
LOADED_FIRST_CHUNK = 4


@dataclass(frozen=True)
class DeployConfig:
    """A checked deploy configuration for one platform.

    `stages` maps the names of the stages that it has to their keys, `replicas` to their engine processes. `raw` is the
    mapping it was made from, before the platform's section. `notes` says which keys have no effect, and why.
    """

    path: Path
    platform: str
    keys: DeployKeys
    stages: dict[str, StageKeys]
    replicas: dict[str, list[Replica]]
    sampling_defaults: dict[str, dict]
    seed: int | None
    raw: dict
    notes: tuple[str, ...]

    @property
    def modalities(self) -> tuple[str, ...]:
        """What the server answers in."""
        able = ("text", "audio") if len(self.stages) == len(STAGES) else ("text",)
        return able if self.keys.modalities is None else tuple(name for name in able if name in self.keys.modalities)

    @property
    def adaptive_first_chunk(self) -> bool:
        return self._chunks.initial_codec_chunk_frames == "auto"

    @property
    def schedule(self) -> ChunkSchedule:
        """How the Talker cuts codes; `steady` 0 (all at the end) in full-payload mode."""
        chunks, steady = self._chunks, self._chunks.codec_chunk_frames if self.keys.async_chunk else 0
        initial = chunks.initial_codec_chunk_frames
        if not isinstance(initial, str):
            return ChunkSchedule(initial, steady)
        if steady:
            return ChunkSchedule(1, steady, doubling=True, loaded_initial=LOADED_FIRST_CHUNK, idle_streams=IDLE_STREAMS)
        return ChunkSchedule(1, steady)

    @property
    def _chunks(self) -> ConnectorExtra:
        name = _connector_between(self.stages.get("talker"), self.stages.get("code2wav"))
        return self.keys.connectors[name].extra if name in self.keys.connectors else ConnectorExtra()


def default_profile() -> str:
    """`one_gpu` where the machine has an accelerator, else `cpu`."""
    return "cpu" if detect_platform() == "cpu" else "one_gpu"


def load_deploy_config(path: str | Path | None = None, settings: list[str] | None = None) -> DeployConfig:
    """Read the profile or YAML `path`, else `OMNI_DEPLOY_CONFIG`, else the default profile.

    `settings` are KEY=VALUE texts that are merged over it. Raises DeployError that names file, key and what is allowed.
    """
    try:
        platform = detect_platform()
        path = find_profile(path or os.environ.get("OMNI_DEPLOY_CONFIG") or default_profile())
    except ValueError as error:
        raise DeployError(str(error)) from None
    raw = apply_settings(read_layers(path), settings or [])
    try:
        return _resolve(path, platform, raw)
    except SchemaError as error:
        raise DeployError(f"{path}: {error}") from None


def _resolve(path: Path, platform: str, raw: dict) -> DeployConfig:
    served, notes = applied(apply_platform(raw, platform))
    keys = check_keys(served)
    stages = {STAGES[stage.stage_id]: stage for stage in sorted(keys.stages, key=lambda stage: stage.stage_id)}
    _check_stages(keys, stages)
    placed, replicas = [], {}
    for name, stage in stages.items():
        where = _where(stage)
        on = "cpu" if stage.devices == "cpu" else platform
        if on == "cpu":
            devices = [""] * _replica_count(stage)
        else:
            devices = devices_of_replicas(stage, _replica_count(stage), where)
            placed.append((stage, devices, where))
        replicas[name] = [replica_of(stage, keys, on, device) for device in devices]
    check_memory(placed)
    sampling = {name: _sampling(name, stages[name]) for name in _SAMPLING if name in stages}
    config = DeployConfig(
        path, platform, keys, stages, replicas, sampling, _seed(stages), raw, (*notes, *_notes(keys, stages, platform))
    )
    for replica in config.replicas.get("code2wav", []):
        replica.options.setdefault("codec_chunk_frames", config._chunks.codec_chunk_frames)
    return config


def _where(stage: StageKeys) -> str:
    return f"stages[stage_id={stage.stage_id}]"


def _replica_count(stage: StageKeys) -> int:
    return stage.replicas if stage.num_replicas is None else stage.num_replicas


def _check_stages(keys: DeployKeys, stages: dict[str, StageKeys]) -> None:
    if "thinker" not in stages:
        raise SchemaError("stages", "stage 0 (the Thinker) is missing")
    if ("talker" in stages) != ("code2wav" in stages):
        raise SchemaError("stages", "stages 1 and 2 make speech together: give both, or neither for text only")
    if keys.modalities is not None and "audio" in keys.modalities and "talker" not in stages:
        raise SchemaError("modalities", "audio needs stages 1 and 2, and this configuration has only stage 0")
    for name, stage in stages.items():
        _check_connectors(stage, keys)
        if stage.num_replicas is not None and stage.replicas not in (1, stage.num_replicas):
            raise SchemaError(
                f"{_where(stage)}.num_replicas", f"is {stage.num_replicas}, and replicas {stage.replicas}"
            )
        if stage.async_chunk not in (None, keys.async_chunk):
            raise SchemaError(
                f"{_where(stage)}.async_chunk", "differs from the top level's `async_chunk`, which is for all stages"
            )
        if name != "thinker" and stage.load_format not in (None, "auto", "dummy"):
            raise SchemaError(f"{_where(stage)}.load_format", f"must be auto or dummy, got {stage.load_format!r}")
        if keys.async_chunk and name != "thinker":
            before = stages[STAGES[stage.stage_id - 1]]
            if _connector_between(before, stage) is None:
                raise SchemaError(
                    f"{_where(stage)}.input_connectors",
                    f"async_chunk needs a connector between two stages: set from_stage_{before.stage_id} to one of "
                    f"`connectors`, or async_chunk to false",
                )


def _check_connectors(stage: StageKeys, keys: DeployKeys) -> None:
    sides = (
        ("input_connectors", stage.input_connectors, f"from_stage_{stage.stage_id - 1}", stage.stage_id > 0),
        ("output_connectors", stage.output_connectors, f"to_stage_{stage.stage_id + 1}", stage.stage_id < 2),
    )
    for side, connectors, allowed, exists in sides:
        for end, name in connectors.items():
            where = f"{_where(stage)}.{side}"
            if end != allowed or not exists:
                raise SchemaError(where, f"unknown key {end!r}; " + (f"allowed: {allowed}" if exists else "none here"))
            if name not in keys.connectors:
                known = ", ".join(keys.connectors) or "none is defined"
                raise SchemaError(where, f"unknown connector {name!r}; connectors: {known}")


def _connector_between(before: StageKeys | None, after: StageKeys | None) -> str | None:
    if before is None or after is None:
        return None
    sent = before.output_connectors.get(f"to_stage_{after.stage_id}")
    return after.input_connectors.get(f"from_stage_{before.stage_id}", sent)


def _sampling(name: str, stage: StageKeys) -> dict:
    """Defaults of requests."""
    where = f"{_where(stage)}.default_sampling_params"
    values = {key: value for key, value in stage.default_sampling_params.items() if key != "seed"}
    values = {key: value for key, value in values.items() if key not in _UNUSED_SAMPLING}
    try:
        sampling_from_dict(_SAMPLING[name], values, where)
    except InvalidRequest as error:
        hint = ", seed" if "unknown field" in error.reason else ""
        raise SchemaError(error.field, error.reason + hint) from None
    return values


def _seed(stages: dict[str, StageKeys]) -> int | None:
    """The seed of requests that bring none; a request has one seed for all stages."""
    seeds = {}
    for name in _SAMPLING:
        if name in stages and (seed := stages[name].default_sampling_params.get("seed")) is not None:
            where = f"{_where(stages[name])}.default_sampling_params.seed"
            if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
                raise SchemaError(where, f"must be an integer from 0 to 2**63-1, got {seed!r}")
            seeds[where] = seed
    if len(set(seeds.values())) > 1:
        raise SchemaError(" and ".join(seeds), f"must be equal, got {list(seeds.values())}: a request has one seed")
    return next(iter(seeds.values()), None)


def _notes(keys: DeployKeys, stages: dict[str, StageKeys], platform: str) -> list[str]:
    """Keys that were set and have no effect."""
    notes = []
    for name, connector in keys.connectors.items():
        if connector.name in TRANSPORTS:
            unused = "".join(f" No effect: extra.{key}." for key in connector.unused_extra)
            notes.append(f"connectors.{name}.name: not needed, ids and codes travel over ZeroMQ here.{unused}")
    sections: list[tuple[str, object]] = [("", keys)]
    sections += [(f"connectors.{name}.extra.", item.extra) for name, item in keys.connectors.items()]
    sections += [(f"{_where(stage)}.", stage) for stage in stages.values()]
    for where, section in sections:
        for name, item in keys_of(type(section)).items():
            if item.metadata["ignored"] and getattr(section, name) is not None:
                notes.append(f"{where}{name}: {item.metadata['doc']}")
    for name, stage in stages.items():
        for argument in stage.engine_args if name != "thinker" else UNREAD_BY_STAGES & set(stage.engine_args):
            notes.append(f"{_where(stage)}.{argument}: no effect in this stage.")
    if "moe_backend" in stages["thinker"].engine_args and "cpu" in (platform, stages["thinker"].devices):
        notes.append(f"{_where(stages['thinker'])}.moe_backend: no effect on the CPU.")
    for name in ("talker", "code2wav"):
        if isinstance(keyed := stages.get(name), TalkerKeys | Code2WavKeys) and keyed.max_cudagraph_capture_size:
            notes.append(f"{_where(stages[name])}.max_cudagraph_capture_size: no effect unless it is 0.")
        if name in stages and stages[name].trust_remote_code is not None:
            notes.append(
                f"{_where(stages[name])}.trust_remote_code: no effect, this stage runs no code of a checkpoint."
            )
    if "code2wav" in stages and stages["code2wav"].default_sampling_params:
        notes.append(f"{_where(stages['code2wav'])}.default_sampling_params: no effect, the decoder samples nothing.")
    return notes
