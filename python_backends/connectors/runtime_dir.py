"""The directory that holds a server's sockets and its opener key: one a server, closed to other users."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

_OPENER_KEY = "opener.key"


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


def opener_key(path: Path) -> str:
    """The secret that a call to a stage's model must carry to open streams: drawn by whoever asks first at a start.

    It is kept in the directory, with mode 0600, for the models of the same server alone.
    """
    key = path / _OPENER_KEY
    if not key.exists():
        mine = path / f"{_OPENER_KEY}.{os.getpid()}"
        with os.fdopen(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):  # somebody was faster: theirs counts
            os.link(mine, key)  # appears with its content, or not at all
        mine.unlink()
    return key.read_text()


def remove_runtime_dir_if_empty(path: Path) -> None:
    """The last stub that leaves takes the directory along, with the key and the files that were only locked."""
    with contextlib.suppress(OSError):
        left = list(path.iterdir())
        if all(item.name == _OPENER_KEY or item.suffix == ".lock" for item in left):
            for item in left:
                item.unlink(missing_ok=True)
        path.rmdir()
