"""vLLM-Omni's deploy YAMLs: its shapes and names, in ours. Tables of what it knows and this server does otherwise."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

FULL, TEXT_ONLY = "qwen3_omni_moe", "qwen3_omni_moe_thinker_only"
PIPELINES = (FULL, TEXT_ONLY)
# Between hosts and between devices they move hidden states; here ids and codes travel, a few bytes a frame.
TRANSPORTS = (
    "MoriTransferEngineConnector",
    "MooncakeConnector",
    "MooncakeStoreConnector",
    "MooncakeTransferEngineConnector",
    "NixlConnector",
    "YuanrongConnector",
    "YuanrongTransferEngineConnector",
)
# Top-level keys that stage 0 takes unless it has its own.
PIPELINE_WIDE = (
    "trust_remote_code",
    "distributed_executor_backend",
    "dtype",
    "quantization",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "pipeline_parallel_size",
)
# Keys of a stage that are no engine arguments of vLLM and that its pipeline for this model does not read either.
UNREAD_BY_STAGES = frozenset({"default_pooling_params", "subtalker_sampling_params", "silence_ban_frames"})
_RUNTIME = ("devices", "num_replicas", "env")


@cache
def vllm_engine_args() -> frozenset[str]:
    """Names of vLLM's engine arguments, listed in a file because the stubs have no vLLM to ask."""
    return frozenset(Path(__file__).with_name("vllm_engine_args.txt").read_text().split())


def flattened(raw: dict, own_keys: dict[int, Any]) -> dict:
    """`raw` with `runtime`, `engine_extras` and `engine_args` of its stages as keys of the stage, where they are such.

    Done to each file before files are merged, so that the last one to say a value counts wherever it stands.
    `own_keys` maps stage ids to the names that their stages have. What has not the right shape is left as it is, for
    the schema to refuse.
    """
    flat = dict(raw)
    if isinstance(raw.get("stages"), list):
        flat["stages"] = [_flat_stage(stage, own_keys) for stage in raw["stages"]]
    if isinstance(raw.get("platforms"), dict):
        flat["platforms"] = {
            name: flattened(section, own_keys) if isinstance(section, dict) else section
            for name, section in raw["platforms"].items()
        }
    return flat


def _flat_stage(stage: Any, own_keys: dict[int, Any]) -> Any:
    if not isinstance(stage, dict) or stage.get("stage_id") not in tuple(own_keys):
        return stage
    known = {*own_keys[stage["stage_id"]], *vllm_engine_args()} - {"engine_args", "stage_id"}
    flat = dict(stage)
    extras, args = flat.get("engine_extras"), flat.get("engine_args")
    if isinstance(extras, dict) and (args is None or isinstance(args, dict)):
        del flat["engine_extras"]
        flat["engine_args"] = extras | (args or {})
    for nest, taken in (("engine_args", known), ("runtime", set(_RUNTIME))):
        if isinstance(flat.get(nest), dict):
            inside = flat.pop(nest)
            flat |= {name: value for name, value in inside.items() if name in taken}
            if rest := {name: value for name, value in inside.items() if name not in taken}:
                flat[nest] = rest  # refused by the schema, or in stage 0 left to vLLM, which knows its own version
    return flat


def applied(raw: dict) -> tuple[dict, list[str]]:
    """`raw`, a checked mapping, with its `pipeline` and pipeline-wide keys applied to its stages; and notes on that."""
    stages = raw.get("stages") or []
    notes = []
    if raw.get("pipeline") == TEXT_ONLY and any(stage["stage_id"] != 0 for stage in stages):
        stages = [stage for stage in stages if stage["stage_id"] == 0]
        notes.append(f"stages: 1 and 2 are left out, as pipeline is {TEXT_ONLY}: text only.")
    wide = {name: raw[name] for name in PIPELINE_WIDE if raw.get(name) is not None}
    stages = [
        wide | {name: value for name, value in stage.items() if value is not None or name not in wide}
        if stage["stage_id"] == 0
        else stage
        for stage in stages
    ]
    return raw | {"stages": stages}, notes
