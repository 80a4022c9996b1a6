"""The directory that holds a server's sockets: one a server, closed to other users."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def runtime_dir() -> Path:
    """Return the directory, made with mode 0700 if missing.

    `OMNI_RUNTIME_DIR` names it; without it the parent process (tritonserver, the same for all stubs) does. Raises
    PermissionError when somebody else could enter it: a socket there would accept their chunks.
    """
    named = os.environ.get("OMNI_RUNTIME_DIR")
    path = Path(named) if named else Path(tempfile.gettempdir()) / f"qwen3-omni-{os.getuid()}-{os.getppid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = path.stat()
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise PermissionError(
            f"{path} must belong to this user and have mode 0700: other users could reach its sockets"
        )
    return path


def remove_runtime_dir_if_empty(path: Path) -> None:
    """The last stub that leaves takes the directory along, and the files in it that were only locked."""
    left = list(path.glob("*"))
    if all(item.suffix == ".lock" for item in left):
        for item in left:
            item.unlink(missing_ok=True)
    try:
        path.rmdir()
    except OSError:
        return
