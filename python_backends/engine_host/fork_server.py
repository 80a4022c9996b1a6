"""The parent of an engine process: it imports the engine's libraries once and forks an engine for each line it is sent.

So an engine that died is back without the imports, which are most of the start of a small one. A process that forks
must be alone in itself: this one has a single thread, computes nothing and touches no device. Where a library has
broken that by being imported, the engine is executed afresh instead: CUDA does not work in a fork of what has
initialised it, and a lock that another thread held stays locked.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

log = logging.getLogger("engine_host")
_AFRESH = "ENGINE_HOST_LINE"
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.25
_CUDA_NOT_INITIALIZED = 3


def serve(preload: Callable[[dict], None], run: Callable[[dict], int]) -> int:
    """Fork a process that ends with the code of `run(config)` for each line of standard input, one after another.

    A line is a JSON object; its `report` is the descriptor on which `{"pid"}` and later `{"code"}` are written, a line
    each. The end of standard input is the end, which the death of the stub is too: then the tritonserver of process id
    `triton` is ended as well if no stub is left to do that. `preload(config)` imports what the first engine needs.
    """
    if (own_line := os.environ.pop(_AFRESH, None)) is not None:
        return run(json.loads(own_line))
    line = sys.stdin.buffer.readline()
    if line:
        preload(json.loads(line))
        gc.collect()
        gc.freeze()  # else a collection in the engine copies what it shares with this process
    while line:
        config = json.loads(line)
        server, alone = os.getpid(), _is_alone()
        if (pid := os.fork()) == 0:
            _become_engine(server, config["report"])
            if not alone or _torch_refuses():
                _execute_afresh(line)
            os._exit(run(config))
        _report(config, {"pid": pid})
        _, status = os.waitpid(pid, 0)
        _report(config, {"code": os.waitstatus_to_exitcode(status)})
        line = sys.stdin.buffer.readline()
        if not line and config.get("triton"):
            _end_if_deserted(config["triton"])
    return 0


def _report(config: dict, message: dict) -> None:
    with contextlib.suppress(BrokenPipeError):  # the end of standard input tells the same
        os.write(config["report"], json.dumps(message).encode() + b"\n")


def _end_if_deserted(triton: int) -> None:
    """Kill tritonserver when none of its stubs runs. One that runs takes care of what the death of another asks for; a
    server that has lost all of them at once would keep its clients waiting, and say that it is ready."""
    while os.path.exists(f"/proc/{triton}"):
        stubs: list[str] = []
        for task in Path(f"/proc/{triton}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                stubs += task.read_text().split()
        if not any(map(_runs, stubs)):
            log.critical("every stub has died, and Triton brings none back: the server ends")
            with contextlib.suppress(ProcessLookupError):
                os.kill(triton, signal.SIGKILL)
            return
        time.sleep(_LOOK_S)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def _is_alone() -> bool:
    """Whether this process has one thread and has not initialised CUDA, by whatever library."""
    return len(list(Path("/proc/self/task").iterdir())) == 1 and not _cuda_is_initialised()


def _cuda_is_initialised() -> bool:
    """What CUDA's driver says, where a library has loaded it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _CUDA_NOT_INITIALIZED


def _torch_refuses() -> bool:
    """Whether torch counts this process as forked from one that has used CUDA; it says so in the fork alone."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda._is_in_bad_fork()


def _become_engine(server: int, report: int) -> None:
    os.setsid()  # its children are ended with it, and the server is not
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    os.close(report)  # its end tells that the server has ended


def _execute_afresh(line: bytes) -> NoReturn:
    log.info("the imports left a thread or touched a device: the engine imports them itself")
    os.environ[_AFRESH] = line.decode()
    os.execv(sys.executable, sys.orig_argv)
