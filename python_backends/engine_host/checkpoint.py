"""Where the checkpoint is on this machine."""

from __future__ import annotations

import json
from pathlib import Path


def local_checkpoint(model: str) -> str:
    """Return the directory of `model`, a path or a hub id, downloading the latter once for all stages.

    Raises FileNotFoundError that says what was looked for.
    """
    if Path(model).is_dir():
        return str(Path(model).resolve())
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return snapshot_download(model)
    except (HFValidationError, RepositoryNotFoundError, LocalEntryNotFoundError) as error:
        raise FileNotFoundError(f"{model!r} is neither a directory nor a model that the hub has: {error}") from error


def check_speaks(model: str) -> None:
    """Raises ValueError for a checkpoint without the parts that speak, such as the Thinking variant."""
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    if "thinker_config" not in config:
        return  # no checkpoint of this model at all: the engine has its own words for that
    missing = [part for part in ("talker_config", "code2wav_config") if part not in config]
    if missing or not config.get("enable_audio_output", True):
        raise ValueError(
            f"{model} answers in text only (no {' and '.join(missing) or 'audio output'} in its config.json): "
            "serve it with stage 0 alone, as the profile `thinking` does"
        )
