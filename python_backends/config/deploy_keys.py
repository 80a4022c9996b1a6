"""The top-level keys of a deploy YAML."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

from python_backends.config.platforms import PLATFORMS
from python_backends.config.schema import (
    Either,
    Kind,
    Named,
    SchemaError,
    Section,
    boolean,
    integer,
    key,
    keys_of,
    listing,
    mapping,
    number,
    one_of,
    parse_section,
    text,
)  # fmt: skip
from python_backends.config.stage_keys import StageKeys, ThinkerKeys, parse_stage
from python_backends.config.vllm_omni import PIPELINES, TRANSPORTS

CONNECTORS = ("ZmqConnector", "SharedMemoryConnector", *TRANSPORTS)
_FOREIGN = "No effect here; taken so that vLLM-Omni's files load."
_WIDE = "For stage 0, unless the stage says it itself."
_TURN = Kind("turn (a request is a whole turn; duplex sessions are not served)", lambda v: v == "turn")


def _wide(name: str) -> Any:
    return key(keys_of(ThinkerKeys)[name].metadata["kind"], _WIDE)


class Stages(Kind):
    """A list of stage entries, each with its own `stage_id`."""

    def __init__(self) -> None:
        super().__init__("a list of stages", lambda v: isinstance(v, list) and bool(v))

    def parse(self, value: Any, where: str) -> list[StageKeys]:
        stages = [parse_stage(item, f"{where}[{at}]") for at, item in enumerate(super().parse(value, where))]
        ids = [stage.stage_id for stage in stages]
        for at, stage_id in enumerate(ids):
            if stage_id in ids[:at]:
                raise SchemaError(f"{where}[{at}].stage_id", f"{stage_id} is there twice; one entry a stage")
        return stages


class Platforms(Kind):
    """A mapping of platform names to `stages` that are merged over the file's."""

    def __init__(self) -> None:
        super().__init__(f"a mapping of {', '.join(PLATFORMS)} to `stages`", lambda v: isinstance(v, dict))

    def parse(self, value: Any, where: str) -> dict:
        for name, body in super().parse(value, where).items():
            if name not in PLATFORMS:
                raise SchemaError(f"{where}.{name}", f"unknown platform; allowed: {', '.join(PLATFORMS)}")
            Section(PlatformKeys).parse(body, f"{where}.{name}")
        return value


@dataclass(frozen=True, kw_only=True)
class PlatformKeys:
    """One platform's section."""

    stages: list = key(Stages(), "Keys that replace those of the stage with the same `stage_id`, deep.", [])
    model_runner: str | None = key(one_of("v1", "v2"), _FOREIGN, ignored=True)


@dataclass(frozen=True, kw_only=True)
class ConnectorExtra:
    """`extra` of a connector: how speech codes are cut into chunks on the way from Talker to Code2Wav."""

    initial_codec_chunk_frames: int | str = key(
        Either(integer(1), one_of("auto")),
        "Frames (80 ms each) of the first chunk. `auto`: 1 while up to four streams are open, else 4; then each chunk "
        "is twice as large, up to `codec_chunk_frames`.",
        4,
    )
    codec_chunk_frames: int = key(integer(1), "Frames of every later chunk.", 25)
    codec_left_context_frames: int | None = key(
        integer(0), "No effect: the decoder keeps its state and decodes no frame twice.", ignored=True
    )
    shm_threshold_bytes: int | None = key(integer(0), _FOREIGN, ignored=True)
    codec_streaming: bool | None = key(boolean(), _FOREIGN, ignored=True)
    connector_get_sleep_s: float | None = key(number(0), _FOREIGN, ignored=True)
    connector_get_max_wait_first_chunk: int | None = key(integer(0), _FOREIGN, ignored=True)
    connector_get_max_wait: int | None = key(integer(0), _FOREIGN, ignored=True)


@dataclass(frozen=True, kw_only=True)
class ConnectorKeys:
    """One connector: what carries chunks from a stage to the next."""

    name: str = key(
        one_of(*CONNECTORS),
        "Its type. Chunks travel over ZeroMQ on this host: ids and codes are small. The other names are taken as "
        "names for it; with those of transfer engines `extra` may hold their own settings, which have no effect.",
        "ZmqConnector",
    )
    extra: ConnectorExtra = key(Section(ConnectorExtra), "How speech codes are cut into chunks.", ConnectorExtra())
    unused_extra: tuple[str, ...] = ()


class Connectors(Named):
    """Connectors by name. In the `extra` of another transport only what cuts codes into chunks counts."""

    def __init__(self) -> None:
        super().__init__(ConnectorKeys)

    def parse(self, value: Any, where: str) -> dict[str, ConnectorKeys]:
        ours: dict[str, Any] = {}
        unused: dict[str, tuple[str, ...]] = {}
        known = keys_of(ConnectorExtra)
        for name, item in Kind.parse(self, value, where).items():
            ours[name] = item
            unused[name] = ()
            if isinstance(item, dict) and item.get("name") in TRANSPORTS and isinstance(item.get("extra"), dict):
                kept = {key for key in item["extra"] if difflib.get_close_matches(str(key), known, 1, cutoff=0.8)}
                ours[name] = item | {"extra": {key: item["extra"][key] for key in item["extra"] if key in kept}}
                unused[name] = tuple(str(key) for key in item["extra"] if key not in kept)
        parsed = super().parse(ours, where)
        return {name: replace(item, unused_extra=unused[name]) for name, item in parsed.items()}


@dataclass(frozen=True, kw_only=True)
class TimeoutKeys:
    """Time limits of one request, in seconds. A request may ask for shorter ones. Unset: no limit."""

    queue_s: float | None = key(number(0), "Waiting for a free place.", 60.0)
    first_audio_s: float | None = key(number(0), "From arrival to the first audio, where audio is asked for.")
    total_s: float | None = key(number(0), "From arrival to the last response.", 900.0)


@dataclass(frozen=True, kw_only=True)
class DeployKeys:
    """A deploy YAML."""

    base_config: str | None = key(
        text("two_gpus"), "A profile's name, or a path relative to this file. What this file says is merged over it."
    )
    modalities: list[str] | None = key(
        listing("text, audio", lambda v: v in ("text", "audio")),
        "What the server answers in. Unset: all its stages can.",
    )
    async_chunk: bool = key(
        boolean(),
        "Each stage starts on the first chunk of the one before. Off: full-payload mode, each waits for the whole.",
        True,
    )
    async_output: bool = key(
        boolean(),
        "The Talker launches its next step before the codes of the last have left the device. It falls back, with the "
        "reason in the log, without `async_chunk`, `async_scheduling` or pinned memory.",
        True,
    )
    cuda_graphs: bool = key(boolean(), "Captured CUDA graphs in all stages.", True)
    connectors: dict[str, ConnectorKeys] = key(Connectors(), "Connectors by name, for `input_connectors`.", {})
    stages: list[StageKeys] = key(Stages(), "One entry a stage. Without 1 and 2 the server answers in text only.", [])
    platforms: dict = key(Platforms(), "Per platform, merged over `stages` on machines of that platform.", {})
    max_in_flight: int = key(integer(1), "Requests worked on at once.", 128)
    max_queued: int = key(
        integer(0), "Requests that may wait beyond those; one more is refused at once with `overloaded`.", 256
    )
    max_unread_gb: float = key(
        number(0),
        "Growth of tritonserver's memory since the start, in GB (10^9 bytes), beyond which new requests are refused at "
        "once with `overloaded`: Triton keeps each answer until its client has read it.",
        4.0,
    )
    max_unread_s: float = key(
        number(0),
        "How long the memory may stay beyond that with nothing in flight while requests are refused. Then the server "
        "ends, to be started again: Triton does not give back what was unread when a client left.",
        30.0,
    )
    max_text_responses_per_s: int = key(
        integer(1),
        "Over all streams: text deltas that come faster leave together, a stream's own at intervals of streams / this "
        "many seconds. A stream's first text, its audio and its end never wait.",
        5000,
    )
    timeouts: TimeoutKeys = key(Section(TimeoutKeys), "Time limits of one request.", TimeoutKeys())
    stage_init_timeout_s: float = key(
        number(0), "How long a stage may take to load. Waiting for another on its device does not count.", 900.0
    )
    drain_timeout_s: float = key(
        number(0),
        "At shutdown, how long running requests may go on. It must be below Triton's `--exit-timeout-secs`.",
        3.0,
    )
    warmup: bool = key(boolean(), "Run a request through every replica before the server reports ready.", True)
    pipeline: str | None = key(
        one_of(*PIPELINES), "vLLM-Omni's name of the pipeline; `..._thinker_only`: text only, without stages 1 and 2."
    )
    trust_remote_code: bool | None = _wide("trust_remote_code")
    distributed_executor_backend: str | None = _wide("distributed_executor_backend")
    dtype: str | None = _wide("dtype")
    quantization: str | None = _wide("quantization")
    enable_prefix_caching: bool | None = _wide("enable_prefix_caching")
    enable_chunked_prefill: bool | None = key(boolean(), _WIDE)
    pipeline_parallel_size: int | None = _wide("pipeline_parallel_size")
    data_parallel_size: int | None = key(integer(1, 1), "Must be 1: `replicas` of a stage are the way here.")
    session_mode: str | None = key(_TURN, "`turn`: a request is a whole turn. Duplex sessions are not served.")
    model_runner: str | None = key(one_of("v1", "v2"), _FOREIGN, ignored=True)
    edges: list | None = key(listing("edges", lambda v: isinstance(v, dict)), _FOREIGN, ignored=True)
    active_stream_window: int | None = key(integer(0), _FOREIGN, ignored=True)
    custom_voice_dir: str | None = key(
        text("voices/"), "No effect here: the voices are the checkpoint's.", ignored=True
    )
    duplex_session: dict | None = key(mapping("settings"), _FOREIGN, ignored=True)


def check_keys(raw: dict) -> DeployKeys:
    """Check one file, or files merged. Raises SchemaError."""
    return parse_section(DeployKeys, raw, "")
