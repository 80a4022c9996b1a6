"""The keys of one entry of `stages` in a deploy YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from python_backends.config.schema import (
    Either,
    SchemaError,
    boolean,
    integer,
    key,
    keys_of,
    mapping,
    number,
    one_of,
    parse_section,
    text,
    unknown_key,
    variables,
)  # fmt: skip
from python_backends.config.vllm_omni import UNREAD_BY_STAGES, vllm_engine_args

STAGES = ("thinker", "talker", "code2wav")
_VLLM = "vLLM's own default"


@dataclass(frozen=True, kw_only=True)
class StageKeys:
    """Keys of every stage."""

    stage_id: int = key(integer(0, 2), "0 is the Thinker, 1 the Talker, 2 Code2Wav.", default=-1)
    devices: str = key(
        text("0,1"),
        "Devices of this stage, by index. Its replicas share them out: with as many replicas as devices each gets one. "
        "`cpu`: this stage runs on the CPU, as every stage does on a machine without an accelerator.",
        "0",
    )
    replicas: int = key(
        integer(1, 64), "Engine processes of this stage. A request is given to the one with the fewest open.", 1
    )
    num_replicas: int | None = key(integer(1, 64), "Another name for `replicas`.")
    max_in_flight: int | None = key(
        integer(1), "Streams that this stage works on at once, over all replicas; more wait. Unset: no limit here."
    )
    max_num_seqs: int = key(integer(1), "Streams in one batch of one replica.", 64)
    dtype: str | None = key(
        one_of("float32", "bfloat16", "auto"),
        "Type of weights and activations. Unset and `auto`: bfloat16, on the CPU float32.",
    )
    load_format: str | None = key(
        text("dummy"), "`auto` reads the checkpoint, `dummy` draws random weights of its sizes; stage 0: any of vLLM's."
    )
    gpu_memory_utilization: float | None = key(
        number(0, 1),
        "Most of a device's memory that one replica may take. Stage 0 fills it with KV cache and takes 0.9 if unset; "
        "stages 1 and 2 take what they need. No effect on the CPU.",
    )
    enforce_eager: bool | None = key(
        boolean(), "No CUDA graphs in this stage. Unset: as `cuda_graphs` says; on the CPU there are none."
    )
    input_connectors: dict = key(
        mapping("from_stage_N to a connector's name"), "Where this stage's input comes by.", {}
    )
    output_connectors: dict = key(mapping("to_stage_N to a connector's name"), "The same from the sender's side.", {})
    default_sampling_params: dict = key(
        mapping("sampling parameters"),
        "Sampling parameters of requests that set none: the fields of `sampling.thinker` or `sampling.talker` in "
        "docs/requests.md, and `seed`. Stage 2 samples nothing.",
        {},
    )
    env: dict = key(variables(), "Set in the engine process before it touches a device.", {})
    engine_options: dict = key(
        mapping("options"),
        "Fields of the engine's own options that have no key here (`ThinkerOptions`, `TalkerOptions`, "
        "`Code2WavOptions`), checked by the engine when it starts.",
        {},
    )
    trust_remote_code: bool | None = key(boolean(), "Stage 0: as vLLM takes it. No effect in stages 1 and 2.")
    async_chunk: bool | None = key(boolean(), "Taken if it says what the top level's `async_chunk` says.")
    engine_args: dict = key(
        mapping("vLLM's engine arguments"),
        "Other engine arguments of vLLM. They may also stand beside the keys here. Stage 0 takes all; in this mapping "
        "a name that only another version of vLLM has is left to the engine to check. In stages 1 and 2 those "
        "without a key here have no effect, and the log names them.",
        {},
    )


@dataclass(frozen=True, kw_only=True)
class ThinkerKeys(StageKeys):
    """Stage 0 also takes every engine argument of vLLM, under vLLM's name; these are the common ones."""

    dtype: str | None = key(text("auto"), "As vLLM names it. Unset: `auto`, the checkpoint's; on the CPU float32.")
    max_num_batched_tokens: int | None = key(integer(1), f"Tokens of one step. Unset: {_VLLM}.")
    max_model_len: int | None = key(
        integer(1), "Tokens of prompt and answer. Unset: the checkpoint's; on the CPU 4096."
    )
    enable_prefix_caching: bool | None = key(boolean(), f"Reuse the KV cache of common prefixes. Unset: {_VLLM}.")
    async_scheduling: bool | None = key(boolean(), f"Schedule a step while the one before runs. Unset: {_VLLM}.")
    tensor_parallel_size: int = key(integer(1), "Devices that one replica splits each layer over.", 1)
    pipeline_parallel_size: int = key(integer(1), "Groups of devices that one replica splits its layers over.", 1)
    distributed_executor_backend: str | None = key(
        one_of("mp", "ray", "uni"), f"What runs the workers of one replica. Unset: {_VLLM}."
    )
    quantization: str | None = key(text("fp8"), "Quantization method. Unset: as the checkpoint says.")
    kv_cache_dtype: str | None = key(text("fp8"), f"Type of the KV cache. Unset: {_VLLM}.")
    limit_mm_per_prompt: dict | None = key(mapping("modality to count"), "Media items of one prompt.")
    hf_overrides: dict | None = key(mapping("config keys"), "Overrides of the checkpoint's configuration.")
    compilation_config: Any = key(Either(mapping("options"), integer(0, 3)), f"vLLM's compilation. Unset: {_VLLM}.")


@dataclass(frozen=True, kw_only=True)
class TalkerKeys(StageKeys):
    """Keys of stage 1 alone."""

    max_num_batched_tokens: int | None = key(integer(1), "Prompt rows computed between two decode steps. Unset: 2048.")
    max_model_len: int | None = key(
        integer(1),
        "Rows of prompt and speech that one stream may use. Unset: as many as an eighth of the device's memory holds, "
        "at least 8192 and at most the checkpoint's; on the CPU 8192.",
    )
    async_scheduling: bool = key(
        boolean(), "Launch a step before the one before has been handled. `async_output` needs it.", True
    )
    batch_invariant: bool = key(
        boolean(), "Steps of one fixed shape: the same rounding whoever shares the batch, at the price of speed.", False
    )
    enable_prefix_caching: bool | None = key(boolean(), "No effect: speech has no common prefixes.", ignored=True)
    max_cudagraph_capture_size: int | None = key(integer(0), "0: no CUDA graphs. Else no effect.")
    tensor_parallel_size: int = key(integer(1, 1), "One replica runs on one device.", 1)


@dataclass(frozen=True, kw_only=True)
class Code2WavKeys(StageKeys):
    """Keys of stage 2 alone."""

    max_num_batched_tokens: int | None = key(
        integer(800),
        "Codes of one step, 16 a frame: bounds the memory of a step. Unset: 25600, which is 64 x 25 frames.",
    )
    batch_invariant: bool = key(
        boolean(),
        "Decode each frame by itself: samples are equal bit for bit whatever the chunks are and whoever shares the "
        "stage, at the price of speed. Off, rounding may differ in the last bits.",
        False,
    )
    max_model_len: int | None = key(integer(1), "No effect: the decoder keeps a state, not a context.", ignored=True)
    async_scheduling: bool | None = key(boolean(), "No effect.", ignored=True)
    enable_prefix_caching: bool | None = key(boolean(), "No effect: the decoder has no prefixes.", ignored=True)
    max_cudagraph_capture_size: int | None = key(integer(0), "0: no CUDA graphs. Else no effect.")
    tensor_parallel_size: int = key(integer(1, 1), "One replica runs on one device.", 1)


STAGE_KEYS: dict[int, type[StageKeys]] = {0: ThinkerKeys, 1: TalkerKeys, 2: Code2WavKeys}


def parse_stage(values: Any, where: str) -> StageKeys:
    """Check one entry of `stages`. Raises SchemaError."""
    if not isinstance(values, dict):
        raise SchemaError(where, f"must be a mapping with the keys of a stage, got {values!r}")
    stage_id = values.get("stage_id")
    if type(stage_id) is not int or stage_id not in STAGE_KEYS:
        raise SchemaError(f"{where}.stage_id", f"must be 0 (Thinker), 1 (Talker) or 2 (Code2Wav), got {stage_id!r}")
    known, also = keys_of(STAGE_KEYS[stage_id]), vllm_engine_args() | UNREAD_BY_STAGES

    def check(name: Any, at: str) -> None:
        if name not in known and name not in also:
            raise SchemaError(f"{at}.{name}", unknown_key(name, known, also) + ", and vLLM's engine arguments")

    for name in values:
        check(name, where)
    extra = {name: value for name, value in values.items() if name not in known}
    values = {name: value for name, value in values.items() if name in known}
    own = values.get("engine_args") or {}
    if isinstance(own, dict):
        if stage_id != 0:
            for name in own:
                check(name, f"{where}.engine_args")
        values["engine_args"] = extra | own
    return parse_section(STAGE_KEYS[stage_id], values, where)
