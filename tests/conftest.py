"""Fixtures that every part of the suite shares."""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

# CPython before 3.11.9 counts the depth of all parses of an interpreter in one place. pytest parses sources to show a
# failure; a traceback that a finalizer or another thread formats meanwhile is parsed too, for its carets, and pytest
# itself would end with "SystemError: AST constructor recursion depth mismatch". So tracebacks go without carets.
traceback._extract_caret_anchors_from_line_segment = lambda segment: None

# A shell's background job ignores Ctrl-C, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
ENV_DIR = Path(os.environ.get("OMNI_ENV_DIR", ROOT / ".env"))
# Modules of tests/e2e that need no more than the servers which they start themselves.
OWN_SERVER = (
    "test_profiles_rules",
    "test_stub_death",
    "test_hung_talker",
    "test_unread",
    "test_paths",
    "test_full_payload",
    "test_media",
    "test_thinking",
)
# What workers start with, the longest first: what starts last decides when the suite ends.
KERNELS = ("talker/test_triton_kernels.py", "code2wav/test_kernels.py")
FIRST = ("real server", "thinker", "client", "e2e/", *KERNELS, "scripts/")


def group_of(nodeid: str) -> str:
    """What stays on one worker: all tests of a shared server, all of the Thinker's engine, else a module."""
    module = nodeid.split("::")[0].removeprefix("tests/")
    directory, _, name = module.partition("/")
    if directory in ("thinker", "client"):
        return directory  # one vLLM engine a process, one server of the runner's tests
    if directory == "e2e" and not name.startswith(OWN_SERVER):
        return "real server"
    return module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of the groups; within a group the order stays."""

    def rank(item: pytest.Item) -> int:
        group = group_of(item.nodeid)
        return next((at for at, start in enumerate(FIRST) if group.startswith(start)), len(FIRST))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Groups by `group_of`: xdist's own `--dist loadgroup` marks what pytest 9.2 no longer reads."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)


def _checkpoint_key() -> str:
    """A hash of the code that makes the tiny checkpoint."""
    scripts = ROOT / "scripts"
    sources = [scripts / "make_tiny_checkpoint.py", *sorted((scripts / "tiny_checkpoint").glob("*.*"))]
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
