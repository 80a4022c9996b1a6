"""Fixtures that every part of the suite shares."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENV_DIR = Path(os.environ.get("OMNI_ENV_DIR", ROOT / ".env"))
TESTS = ROOT / "tests"
# Groups that workers start with, the longest first: what starts last decides when the suite ends.
FIRST = ("real server", "vllm", "e2e/", "talker/test_triton_kernels.py", "code2wav/test_kernels.py", "scripts/")


def _group(item: pytest.Item) -> str:
    """What must stay on one worker: tests that share something expensive, and otherwise one module."""
    module = item.path.relative_to(TESTS).as_posix()
    fixtures = getattr(item, "fixturenames", ())
    if module.startswith("thinker/") and {"servers", "oracle"} & set(fixtures):
        return "vllm"  # one engine a process
    if module.startswith("e2e/") and "server" in fixtures:
        return "real server"
    return module


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n`, a group is one worker's (`--dist loadgroup`); without workers only the order is left of it."""
    groups = {item: _group(item) for item in items}

    def rank(item: pytest.Item) -> int:
        return next((at for at, start in enumerate(FIRST) if groups[item].startswith(start)), len(FIRST))

    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item]))
    # Modules of one group need not be neighbours yet; within it the order stays.
    firsts = {group: at for at, group in reversed(list(enumerate(groups.values())))}
    items.sort(key=lambda item: (rank(item), firsts[groups[item]]))


def _checkpoint_key() -> str:
    """A hash of the code that makes the tiny checkpoint."""
    scripts = ROOT / "scripts"
    sources = [scripts / "make_tiny_checkpoint.py", *sorted((scripts / "tiny_checkpoint").glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """Directory of the tiny checkpoint (seed 0), built once for each version of its code."""
    target = ENV_DIR / f"tiny-{_checkpoint_key()}"
    with (ENV_DIR / "tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers want it at once: one builds, the other waits
        if not target.is_dir():
            _build(target)
    return target


def _build(target: Path) -> None:
    partial = target.with_suffix(f".partial-{os.getpid()}")
    command = [sys.executable, str(ROOT / "scripts" / "make_tiny_checkpoint.py"), str(partial)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        partial.rename(target)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"the tiny checkpoint could not be built:\n{error.stderr}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
