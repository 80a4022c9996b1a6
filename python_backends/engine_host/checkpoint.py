"""Where the checkpoint is on this machine."""

from __future__ import annotations

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
