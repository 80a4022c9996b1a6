"""What a stage's engine process is told: fields of its own options dataclass, and its environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from python_backends.config.deploy_keys import DeployKeys
from python_backends.config.platforms import TORCH_DEVICE, VISIBLE_DEVICES
from python_backends.config.schema import default_of, keys_of
from python_backends.config.stage_keys import STAGES, StageKeys, ThinkerKeys
from python_backends.config.vllm_omni import UNREAD_BY_STAGES, vllm_engine_args

CODES_PER_FRAME = 16
_NOT_VLLM = {"dtype", "max_num_seqs", "enforce_eager"}  # set by other means


@dataclass(frozen=True)
class Replica:
    """One engine process.

    `options` are fields of the stage's options dataclass; `env` is set before anything touches the device;
    `memory_fraction` is the most of its device's memory that torch may take, None without a limit; `devices` are the
    indices of its devices, none on the CPU.
    """

    options: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict)
    memory_fraction: float | None = None
    devices: tuple[str, ...] = ()


def replica_of(stage: StageKeys, deploy: DeployKeys, platform: str, devices: str) -> Replica:
    """The engine process of `stage` on `devices`."""
    options = _OPTIONS[stage.stage_id](stage, deploy, platform) | stage.engine_options
    env = {name: str(value) for name, value in stage.env.items()}
    if platform == "cpu":
        return Replica(options, env)
    exact = {"TRITON_F32_DEFAULT": "ieee"} if options["dtype"] in ("float32", "float") else {}  # not TF32
    env = {VISIBLE_DEVICES[platform]: devices, **exact, **env}
    fraction = stage.gpu_memory_utilization if stage.stage_id != 0 else None
    return Replica(options, env, fraction, tuple(devices.split(",")))


def graphs_in(stage: StageKeys, deploy: DeployKeys) -> bool:
    """Whether the stage captures CUDA graphs (where the device has them)."""
    no_capture = getattr(stage, "max_cudagraph_capture_size", None) == 0
    return deploy.cuda_graphs and not stage.enforce_eager and not no_capture


def _common(stage: StageKeys, platform: str) -> dict[str, Any]:
    dtype = stage.dtype
    if dtype is None or (dtype == "auto" and stage.stage_id != 0):
        dtype = "float32" if platform == "cpu" else "auto" if stage.stage_id == 0 else "bfloat16"
    return {
        "device": TORCH_DEVICE.get(platform, platform),
        "dtype": dtype,
        "max_num_seqs": stage.max_num_seqs,
    }


def _thinker(stage: ThinkerKeys, deploy: DeployKeys, platform: str) -> dict[str, Any]:
    args = {name: value for name, value in stage.engine_args.items() if name not in UNREAD_BY_STAGES}
    for name, item in keys_of(ThinkerKeys).items():
        if name in vllm_engine_args() - _NOT_VLLM and getattr(stage, name) != default_of(item):
            args[name] = getattr(stage, name)
    if platform == "cpu":
        # The CPU's KV cache has a size of its own; a share of the machine's memory would fail beside other stages.
        args.pop("gpu_memory_utilization", None)
        args.pop("moe_backend", None)  # kernels of accelerators
    if stage.enforce_eager is not None or not deploy.cuda_graphs:
        args["enforce_eager"] = not graphs_in(stage, deploy)
    return _common(stage, platform) | {"engine_args": args}


def _talker(stage: Any, deploy: DeployKeys, platform: str) -> dict[str, Any]:
    options = _common(stage, platform) | {
        "batch_invariant": stage.batch_invariant,
        "cuda_graphs": graphs_in(stage, deploy),
        "async_chunk": deploy.async_chunk,
        "async_output": deploy.async_output,
        "async_scheduling": stage.async_scheduling,
    }
    if stage.max_num_batched_tokens is not None:
        options["max_prefill_rows"] = stage.max_num_batched_tokens
    if stage.max_model_len is not None:
        options["max_model_len"] = stage.max_model_len
    return options | _load_format(stage)


def _code2wav(stage: Any, deploy: DeployKeys, platform: str) -> dict[str, Any]:
    options = _common(stage, platform) | {"cuda_graphs": graphs_in(stage, deploy)}
    if stage.max_num_batched_tokens is not None:
        options["max_step_frames"] = stage.max_num_batched_tokens // CODES_PER_FRAME
    if stage.batch_invariant:
        options |= {"frame_buckets": [1], "max_step_frames": 1}
    return options | _load_format(stage)


def _load_format(stage: StageKeys) -> dict[str, str]:
    return {} if stage.load_format is None else {"load_format": stage.load_format}


_OPTIONS = {STAGES.index("thinker"): _thinker, STAGES.index("talker"): _talker, STAGES.index("code2wav"): _code2wav}
