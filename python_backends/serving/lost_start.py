"""A start that Triton 2.51 loses: a stub has initialized its model, and Triton never gets to know.

Seen once in some hundred starts on busy machines: the launching thread of tritonserver gave up on the stub's answer and
waits for the stub, which serves, to end. The server then never becomes ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from python_backends.config.errors import OmniError, ShuttingDown

MARK = "start.lost"  # in the runtime directory: tells scripts/serve.sh to start the server again
DONE = "start.done"  # there too: the server has served, and an abort is no failure of its start
SETTLE_S = 2.0  # Triton marks a model as loaded within milliseconds of its stub
LIMIT_S = 30.0
_PAUSE_S = 1.0


def lost_model(
    names: Iterable[str],
    call: Callable[[str], object],
    stop: threading.Event,
    settle_s: float = SETTLE_S,
    limit_s: float = LIMIT_S,
) -> str | None:
    """The first of the models, all of which have initialized, that Triton does not call ready for `limit_s` seconds.

    `call(name)` calls a model and raises OmniError when Triton has none. None when all are there, or at `stop`.
    """
    if stop.wait(settle_s):
        return None
    deadline = time.monotonic() + limit_s
    for name in names:
        while True:
            try:
                call(name)
                break
            except ShuttingDown:
                return None
            except OmniError:
                if time.monotonic() > deadline:
                    return name
            if stop.wait(_PAUSE_S):
                return None
    return None


def mark(runtime_dir: Path, word: str = MARK) -> None:
    """Leave word for whoever starts servers."""
    (runtime_dir / word).touch()
