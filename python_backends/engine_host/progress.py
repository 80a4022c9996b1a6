"""Lines in the log while an engine loads, so that a long start is not a silent one."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path

log = logging.getLogger("engine_host")
PROGRESS_S = 10.0


class LoadProgress:
    """A context that logs elapsed time and memory every `every_s` seconds, from a thread of its own."""

    def __init__(self, every_s: float = PROGRESS_S) -> None:
        self._every_s = every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load-progress", daemon=True)

    def __enter__(self) -> LoadProgress:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join(2)

    def _run(self) -> None:
        while not self._done.wait(self._every_s):
            elapsed = time.monotonic() - self._started
            log.info("still loading after %.0f s: %s", elapsed, ", ".join(memory_in_use()))


def memory_in_use() -> list[str]:
    """What this process holds of host and device memory, in words."""
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    words = [f"{int(resident.split()[1]) / 1e6:.1f} GB of host memory"]
    torch = sys.modules.get("torch")
    # Asking an engine that has not touched its device yet would touch it first.
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        words.append(f"{torch.cuda.memory_reserved() / 1e9:.1f} GB of device memory")
    return words
