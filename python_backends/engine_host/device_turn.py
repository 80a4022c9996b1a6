"""Engines that share a device load one after another: vLLM measures the free memory of its device while it loads."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

log = logging.getLogger("engine_host")
_LOOK_S = 0.1
_SAY_S = 1.0


@contextlib.contextmanager
def device_turn(directory: Path, devices: list[str], waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock for each of `devices` inside of the `with`, in files of `directory`.

    The kernel frees the locks of a holder that dies.
    `waiting()` is called once a second while another process holds one.
    """
    with contextlib.ExitStack() as held:
        for device in sorted(devices):  # everybody in the same order, so that no two wait for each other
            file = held.enter_context((directory / f"device-{device}.lock").open("w"))
            _lock(file, device, waiting)
            # Unlocked and not only closed: a child that vLLM forked has the file open too.
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


def _lock(file: TextIO, device: str, waiting: Callable[[], None]) -> None:
    started, said = time.monotonic(), None
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            now = time.monotonic()
        if said is None:
            log.info("waits to load: another engine loads on device %s", device)
        if said is None or now - said >= _SAY_S:
            waiting()
            said = now
        time.sleep(_LOOK_S)
    if said is not None:
        log.info("waited %.1f s for device %s", time.monotonic() - started, device)
