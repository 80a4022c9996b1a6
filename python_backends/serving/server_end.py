"""What ends the whole server because Triton 2.51 does not bring it back: a stub that died, memory that stays full, a
model that was lost at the start.

Whatever keeps servers running starts it again.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

log = logging.getLogger(__name__)
_TRITON = os.getppid()
_POLL_S = 0.25
_ALIVE = ".alive"


def end_the_server(stub_of: str, at_once: bool = False) -> None:
    """Tell tritonserver to stop after a stub's death, or with `at_once` take it down."""
    log.critical("a stub of %s died, which Triton does not bring back: the server ends", stub_of)
    _signal(signal.SIGKILL if at_once else signal.SIGTERM)


def take_the_server_down(reason: str) -> None:
    """End a tritonserver that can serve nobody, and that would wait, for ever perhaps, if it were told to stop."""
    log.critical("%s: the server ends", reason)
    _signal(signal.SIGKILL)


def server_process() -> int:
    """Process id of the tritonserver whose stub this is."""
    return _TRITON


def _signal(number: int) -> None:
    if os.getppid() == _TRITON:  # else it has ended, and somebody else has become the parent
        os.kill(_TRITON, number)


def announce(runtime_dir: Path, instance: str) -> None:
    """Let the stages know that the model that answers clients serves now; `withdraw` when it is unloaded."""
    (runtime_dir / f"{instance}{_ALIVE}").write_text(f"{os.getpid()} {_started(_TRITON)}")


def withdraw(runtime_dir: Path, instance: str) -> None:
    (runtime_dir / f"{instance}{_ALIVE}").unlink(missing_ok=True)


class AnsweringModels:
    """Watches from a stage's stub the stubs of the models that `announce`d themselves.

    Only such a stub can end its streams and Triton's requests: without it tritonserver would say that it is ready, keep
    every client waiting, and not even stop in order. So it is taken down, which ends the streams at the clients.
    """

    def __init__(self, runtime_dir: Path) -> None:
        self._runtime_dir = runtime_dir
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answering-models", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_S):
            for path in self._runtime_dir.glob(f"*{_ALIVE}"):
                if self._has_died(path):
                    end_the_server(path.stem, at_once=True)

    @staticmethod
    def _has_died(path: Path) -> bool:
        try:
            pid, server = path.read_text().split()
        except (OSError, ValueError):  # withdrawn, or not written yet
            return False
        # Another server of the same process id, such as a container's, may have left its word when it was killed.
        if server != _started(_TRITON) or _runs(int(pid)):
            return False
        return path.exists()  # asked once more: it may have withdrawn and ended since

    def close(self) -> None:
        self._closed.set()
        self._thread.join(2)


def _facts(pid: int) -> list[str]:
    """State, parent and so on of a process, as /proc has them; raises OSError when it is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _started(pid: int) -> str:
    """When a process was started, in ticks since the machine was."""
    try:
        return _facts(pid)[19]
    except OSError:
        return "gone"


def _runs(pid: int) -> bool:
    try:
        return _facts(pid)[0] not in "ZX"  # tritonserver does not wait for stubs that die: they stay as zombies
    except OSError:
        return False
