"""Fixtures that every part of the suite shares."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENV_DIR = Path(os.environ.get("OMNI_ENV_DIR", ROOT / ".env"))


def _checkpoint_key() -> str:
    """A hash of the code that makes the tiny checkpoint."""
    scripts = ROOT / "scripts"
    sources = [scripts / "make_tiny_checkpoint.py", *sorted((scripts / "tiny_checkpoint").glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """Directory of the tiny checkpoint (seed 0), built once for each version of its code."""
    target = ENV_DIR / f"tiny-{_checkpoint_key()}"
    if not target.is_dir():
        partial = target.with_suffix(f".partial-{os.getpid()}")
        command = [sys.executable, str(ROOT / "scripts" / "make_tiny_checkpoint.py"), str(partial)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
            partial.rename(target)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"the tiny checkpoint could not be built:\n{error.stderr}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target
