"""The ladder: deploy configurations, each with one switch more than the one before."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_backends.config.deploy_layers import merge

CHUNKS = {"initial_codec_chunk_frames": 4, "codec_chunk_frames": 25}


@dataclass(frozen=True)
class Row:
    """One configuration. `settings` are merged over the profile; `replicas` doubles stages 1 and 2."""

    name: str
    settings: dict = field(default_factory=dict)
    replicas: int = 1


@dataclass(frozen=True)
class Published:
    """vLLM-Omni's published figures for Qwen3-Omni-30B-A3B at 64 concurrent requests on three GPUs."""

    name: str
    requests_per_s: float
    ttfp_ms: float
    rtf: float


PUBLISHED = (
    Published("batch", 2.2, 5884, 1.15),
    Published("+ CUDA graphs", 8.6, 2790, 0.59),
    Published("+ async chunk", 9.3, 655, 0.63),
    Published("+ async output", 11.3, 631, 0.47),
    Published("+ replicas", 11.7, 632, 0.47),
)


def _switches(graphs: bool, chunk: bool, output: bool, initial: int | str = 4) -> dict:
    return {
        "cuda_graphs": graphs,
        "async_chunk": chunk,
        "async_output": output,
        "connectors": {"data_plane": {"extra": CHUNKS | {"initial_codec_chunk_frames": initial}}},
    }


# The hand-off by token ids and the streaming Code2Wav have no switch: every row of ours has them.
LADDER = (
    Row("batch", _switches(False, False, False)),
    Row("+ CUDA graphs", _switches(True, False, False)),
    Row("+ async chunk", _switches(True, True, False)),
    Row("+ async output", _switches(True, True, True)),
    Row("+ replicas", _switches(True, True, True), replicas=2),
    Row("+ first chunk of 1 frame", _switches(True, True, True, 1)),
    Row("+ chunks that grow", _switches(True, True, True, "auto")),
)
AS_IS = Row("as configured")


def rows(ladder: bool, only: list[int] | None = None, has_gpu: bool = True, replicas: bool = True) -> list[Row]:
    """The rows to run: the profile alone, or the ladder. Without a GPU there are no graphs to switch on."""
    if not ladder:
        return [AS_IS]
    chosen = [row for at, row in enumerate(LADDER) if only is None or at in only]
    if not has_gpu:
        chosen = [row for row in chosen if row.name != "+ CUDA graphs"]
    return [row for row in chosen if replicas or row.replicas == 1]


def deploy_yaml(base: str, row: Row, load_format: str | None = None, overrides: dict | None = None) -> dict:
    """A deploy configuration: profile or path `base`, then the row's settings, then `overrides`."""
    stages: list[dict] = [{"stage_id": stage_id} for stage_id in range(3)]
    for stage in stages:
        if load_format is not None:
            stage["load_format"] = load_format
        if stage["stage_id"] and row.replicas > 1:
            stage["replicas"] = row.replicas
    return merge({"base_config": base, "stages": stages} | row.settings, overrides or {})
