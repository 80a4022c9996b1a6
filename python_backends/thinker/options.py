"""How a Thinker engine is set up, and what that means in vLLM's own arguments."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any

from python_backends.thinker.media.options import MediaOptions, media_options
from python_backends.thinker.media.refs import MEDIA_KINDS

CPU_MAX_MODEL_LEN = 4096
CPU_KV_CACHE_BYTES = 1 << 30
# Rows of a step; a step runs in the next larger graph, so the distances bound what is computed for nothing.
CAPTURE_SIZES = (
    *(1, 2, 4),
    *range(8, 129, 8),
    *range(144, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1152, 2049, 128),
)


@dataclass(frozen=True)
class ThinkerOptions:
    """Options of one Thinker engine.

    - `model`: a Hugging Face directory or hub id with `Qwen3OmniMoeForConditionalGeneration`.
    - `device`: "cpu" or "cuda"; it must be what the installed vLLM is built for.
    - `dtype`: as vLLM names it; "auto" is the checkpoint's.
    - `max_num_seqs`: streams in one batch. `max_streams`: streams accepted and not yet ended; one more is Overloaded.
    - `media`: sources and limits of audio, images and video, a MediaOptions or a mapping of its fields; None takes text
      only, which starts faster.
    - `capture`: hidden rows of media are taken for a Talker; without it only silent requests may have media.
    - `async_output`: hidden rows are copied from the device behind the step loop where that is possible.
    - `engine_args`: fields of vLLM's EngineArgs, passed through unchanged; they win over everything above and over the
      defaults of `vllm_engine_args`.

    Raises ValueError that names the option.
    """

    model: str
    device: str = "cpu"
    dtype: str = "auto"
    max_num_seqs: int = 64
    max_streams: int = 256
    media: MediaOptions | dict[str, Any] | None = field(default_factory=MediaOptions)
    capture: bool = True
    async_output: bool = True
    engine_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device: must be cpu or cuda, got {self.device!r}")
        for name in ("max_num_seqs", "max_streams"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: must be a positive integer, got {value!r}")
        if not isinstance(self.engine_args, dict):
            raise ValueError(f"engine_args: must be a mapping, got {type(self.engine_args).__name__}")
        if isinstance(self.media, dict):
            object.__setattr__(self, "media", media_options(self.media))
        elif self.media is not None and not isinstance(self.media, MediaOptions):
            raise ValueError(f"media: must be a mapping or null, got {self.media!r}")


def prepare_process(options: ThinkerOptions) -> None:
    """Set the environment that vLLM reads at import; what the operator has set stays."""
    # The engine core runs in this process: no second interpreter that imports vLLM again, and no other process to lose.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # One text at a time is tokenized: a pool with a thread for each core would only stand by.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    workers = [options.engine_args.get(f"{name}_parallel_size") or 1 for name in ("tensor", "pipeline")]
    if max(workers) > 1:
        # vLLM waits for its workers to end by themselves, which they do not; they hold nothing that must be kept.
        os.environ.setdefault("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "1")
        if options.device == "cpu":
            # Else vLLM wants a NUMA node for each worker.
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if os.path.isdir(options.model):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def vllm_engine_args(options: ThinkerOptions, known: set[str], config: dict[str, Any]) -> dict[str, Any]:
    """Arguments for vLLM's EngineArgs.

    `known`: the names that the installed vLLM accepts. `config`: the checkpoint's config.json.
    Raises ValueError for a key of `options.engine_args` that vLLM does not know.
    """
    for key in options.engine_args:
        if key not in known:
            raise ValueError(f"engine_args.{key}: unknown to this vLLM; allowed: {', '.join(sorted(known))}")
    media = options.media
    assert not isinstance(media, dict)  # the options have read it
    args: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "max_num_seqs": options.max_num_seqs,
        # All zero selects vLLM's text-only mode.
        "limit_mm_per_prompt": {
            kind: options.media.limit(kind) if isinstance(options.media, MediaOptions) else 0 for kind in MEDIA_KINDS
        },
    }
    if options.device == "cpu":
        args |= _cpu_defaults(config)
    args |= options.engine_args
    if options.device == "cuda":
        most_rows = args.get("max_num_batched_tokens") or CAPTURE_SIZES[-1]
        args["compilation_config"] = _cuda_compilation(args.get("compilation_config"), most_rows)
    # An item that the front's cache holds comes back from it as a name, without the grids that the Talker needs.
    if args.setdefault("mm_processor_cache_gb", 0):
        raise ValueError("engine_args.mm_processor_cache_gb: must be 0")
    # One backend, so that what it cannot take is refused at the door; JSON without the blanks that a model may go on
    # with for ever.
    args.setdefault("structured_outputs_config", {"backend": "xgrammar", "disable_any_whitespace": True})
    if options.media is not None:
        if args.get("worker_extension_cls"):
            raise ValueError("engine_args.worker_extension_cls: must be empty where media are taken")
        args["worker_extension_cls"] = "python_backends.thinker.vllm_patches.film_sound_worker.FilmSoundWorker"
    if options.device == "cpu":
        args.setdefault("worker_cls", "python_backends.thinker.vllm_patches.cpu_worker.SeededCpuWorker")
    if captures(options, config):
        name = {"cpu": "cpu_worker.CaptureCpuWorker", "cuda": "gpu_worker.CaptureGpuWorker"}[options.device]
        capture = {"layer": accept_hidden_layer(config), "async_output": options.async_output}
        args["worker_cls"] = f"python_backends.thinker.capture.{name}"
        args["additional_config"] = {**(args.get("additional_config") or {}), "hidden_rows": capture}
    return args


def captures(options: ThinkerOptions, config: dict[str, Any]) -> bool:
    """Whether hidden rows are ever wanted: media come in and a Talker follows."""
    return options.capture and options.media is not None and accept_hidden_layer(config) is not None


def accept_hidden_layer(config: dict[str, Any]) -> int | None:
    """The Thinker's layer whose input the Talker hears media through; None for a checkpoint without a Talker."""
    if not config.get("enable_audio_output", True):
        return None
    return config.get("talker_config", {}).get("accept_hidden_layer")


def engine_arg_names(engine_args_class: type) -> set[str]:
    return {item.name for item in fields(engine_args_class)}


def _cpu_defaults(config: dict[str, Any]) -> dict[str, Any]:
    text = config.get("thinker_config", config).get("text_config", {})
    # Compiling costs 70 to 100 s at start; an explicit cache size also spares the warm-up.
    return {
        "enforce_eager": True,
        "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
        "max_model_len": min(text.get("max_position_embeddings", CPU_MAX_MODEL_LEN), CPU_MAX_MODEL_LEN),
        # Profiling the encoders runs the largest image and video that the limits allow: minutes on a CPU.
        "skip_mm_profiling": True,
    }


def _cuda_compilation(compilation: Any, most_rows: int) -> Any:
    """`compilation_config` with our defaults for what it leaves open.

    The rotary op keeps MRoPE out of the compiler's fusions: fused with the QK norm it changes what the Talker hears.
    Graphs for steps with prompts in them, up to `most_rows`: vLLM captures only up to twice the decode batch, and
    launches the larger steps one kernel at a time.
    """
    if isinstance(compilation, int):
        compilation = {"mode": compilation}
    if compilation is None:
        compilation = {}
    if not isinstance(compilation, dict):
        return compilation
    defaults: dict[str, Any] = {"custom_ops": ["+rotary_embedding"]}
    if compilation.get("max_cudagraph_capture_size") is None:
        defaults["cudagraph_capture_sizes"] = [size for size in CAPTURE_SIZES if size <= most_rows]
    return {**defaults, **{key: value for key, value in compilation.items() if value is not None}}
