"""What ends the whole server because Triton 2.51 does not bring it back: a stub that died, memory that stays full, a
model that was lost at the start, a runtime directory that was removed.

Whatever keeps servers running starts it again: tritonserver ends with a code that is not 0. One that is told to stop
ends with 0 however it came to that, so an orderly end that nobody asked for is cut off as its last act (`EndOfServer`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)
_TRITON = os.getppid()
_POLL_S = 0.25
ANSWERS, STAGE = ".alive", ".stage"  # kinds of stubs: what the names of their words end in
# Between the end of the last request and the kill: the last responses leave tritonserver.
_FLUSH_S = 0.5
_STAGES_END_S = 15.0


def take_down_after_death(instance: str) -> None:
    """The end after the death of the stub that answers clients: see `StubWatch`."""
    take_the_server_down(f"a stub of {instance} died, which Triton does not bring back")


def take_the_server_down(reason: str) -> None:
    """End a tritonserver that can serve nobody, and that would wait, for ever perhaps, if it were told to stop."""
    log.critical("%s: the server ends", reason)
    _signal(signal.SIGKILL)


def take_the_server_down_after_its_answers(reason: str) -> None:
    """The same once all requests have ended: the last responses, which say why they have, leave tritonserver first."""
    time.sleep(_FLUSH_S)
    take_the_server_down(reason)


def server_process() -> int:
    """Process id of the tritonserver whose stub this is."""
    return _TRITON


class EndOfServer:
    """The end of a server that lost a part, as the model that answers clients brings it about.

    Triton is told to stop, so that it says at once that it is not ready, lets running requests end and unloads every
    model. That would be an end with code 0: so this model, once its requests have ended and its stages are gone, kills
    tritonserver (`finish`).
    """

    def __init__(self) -> None:
        self._begun = threading.Event()

    def begin(self, stub_of: str) -> None:
        """A stub has died, which Triton does not bring back."""
        if not self._begun.is_set():
            self._begun.set()
            log.critical("a stub of %s died, which Triton does not bring back: the server ends", stub_of)
            _signal(signal.SIGTERM)

    def finish(self) -> None:
        """To be called when this model has been unloaded; no more than that when the end was asked for."""
        if not self._begun.is_set():
            return
        deadline = time.monotonic() + _STAGES_END_S
        while _siblings() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        take_the_server_down_after_its_answers(
            "all requests have ended, and the server did not end because somebody asked for it"
        )


def _siblings() -> list[int]:
    """The other stubs of this server that run."""
    found = []
    for task in Path(f"/proc/{_TRITON}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in task.read_text().split()]
    return [pid for pid in found if pid != os.getpid() and _runs(pid)]


def _signal(number: int) -> None:
    if os.getppid() == _TRITON:  # else it has ended, and somebody else has become the parent
        os.kill(_TRITON, number)


def announce(runtime_dir: Path, instance: str, kind: str) -> Path:
    """Leave word, in the file returned, that this stub serves now, for those that watch stubs of its `kind`; `withdraw`
    when its model is unloaded."""
    path = runtime_dir / f"{instance}{kind}"
    path.write_text(f"{os.getpid()} {_started(_TRITON)}")
    return path


def withdraw(runtime_dir: Path, instance: str, kind: str) -> None:
    """Undo `announce`."""
    (runtime_dir / f"{instance}{kind}").unlink(missing_ok=True)


class StubWatch:
    """Watches the stubs of one kind that `announce`d themselves; `on_death(instance)` is called from a thread.

    The stages watch the model that answers clients. Only its stub can end its streams and Triton's requests: without it
    tritonserver would say that it is ready, keep every client waiting, and not even stop in order. That model watches
    the stages, whose engine processes tell it of a stub's death at once, unless they die together.
    """

    def __init__(self, runtime_dir: Path, kind: str, on_death: Callable[[str], None]) -> None:
        self._runtime_dir = runtime_dir
        self._kind = kind
        self._on_death = on_death
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stubs{kind}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_S):
            for path in self._runtime_dir.glob(f"*{self._kind}"):
                if self._has_died(path):
                    self._on_death(path.stem)

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


class RuntimeDirWatch:
    """Watches that the runtime directory, and in it the files `names`, are still what they were.

    Without them no stream can be opened any more, and nothing else tells: what is connected stays connected.
    `on_loss()` is called once, from a thread.
    """

    def __init__(self, runtime_dir: Path, names: list[str], on_loss: Callable[[], None]) -> None:
        self._paths = [runtime_dir, *(runtime_dir / name for name in names)]
        self._known = [_identity(path) for path in self._paths]
        self._on_loss = on_loss
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runtime-dir", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_S):
            if [_identity(path) for path in self._paths] != self._known:
                log.critical("the runtime directory %s, or a socket in it, was removed", self._paths[0])
                self._on_loss()
                return

    def close(self) -> None:
        self._closed.set()
        self._thread.join(2)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


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
