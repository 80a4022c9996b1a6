"""The process that one engine runs in: `python -m python_backends.engine_host`, started by a stub.

Each line of standard input is a JSON HostConfig, for which an engine is forked (see `fork_server`); the end of standard
input means that the stub is gone, and the processes end.
"""

from __future__ import annotations

import importlib
import logging
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from python_backends.engine_host import fork_server

if TYPE_CHECKING:
    from python_backends.engine_host.stage import Stage
    from python_backends.engine_host.streams import Streams

log = logging.getLogger("engine_host")
# An engine's thread launches work without a pause; Python's default lets it keep the others, which answer and deliver,
# waiting 5 ms each time.
SWITCH_INTERVAL_S = 0.001


@dataclass(frozen=True)
class HostConfig:
    """What a stub tells its engine process.

    `control` is the stub's address for hello and heartbeats; `calls` and `data` are the addresses to bind for its calls
    and for chunks; `options` the fields of the stage's own options dataclass; `env` variables to set before anything
    touches the device; `devices` the indices of its devices, on which engines load one after another; `report` and
    `triton` are for the fork server.
    """

    stage: str
    instance: str
    model: str
    control: str
    calls: str
    data: str
    options: dict = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    memory_fraction: float | None = None
    devices: list[str] = field(default_factory=list)
    report: int = -1
    triton: int | None = None


def _watch_parent(config: HostConfig) -> None:
    """End this process and its children when the stub closes our standard input, which it also does by dying."""
    # Nothing is read: what comes is for the fork server. A pipe without a writer is told of anyhow.
    poller = select.poll()
    poller.register(0, 0)
    poller.poll()
    log.warning("the stub is gone: ending")
    try:
        _say_the_stub_is_gone(config)
    except Exception:
        log.exception("the BLS models could not be told")
    # Children of vLLM share our process group, which the stub made for us.
    os.killpg(0, signal.SIGKILL)


def _say_the_stub_is_gone(config: HostConfig) -> None:
    """Take this engine's sockets away and tell the BLS models: the stub, which does both for a dead engine, cannot."""
    import zmq

    from python_backends.connectors.chunk import Chunk
    from python_backends.connectors.zmq_link import ChunkSender

    for address in (config.calls, config.data, config.control):
        Path(address.removeprefix("ipc://")).unlink(missing_ok=True)
    sender = ChunkSender(zmq.Context(), timeout_s=0.5)
    meta = {"instance": config.instance, "stub_gone": True}
    for socket in Path(config.calls.removeprefix("ipc://")).parent.glob("*.replies"):
        sender.send(f"ipc://{socket}", [Chunk("*", config.stage, 0, "abort", True, meta=meta)])
    time.sleep(0.1)  # this process is about to be killed: let ZeroMQ's thread put the messages on their way


def _build_stage(config: HostConfig, streams: Streams) -> Stage:
    # Imports stay here: each stage pulls in only its own libraries.
    if config.memory_fraction is not None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(config.memory_fraction)

    from python_backends.engine_host.checkpoint import check_speaks, local_checkpoint

    model = local_checkpoint(config.model)
    if config.stage != "thinker":
        check_speaks(model)
    if config.stage == "thinker":
        from python_backends.engine_host.thinker_stage import ThinkerOptions, ThinkerStage

        return ThinkerStage(ThinkerOptions(model=model, **config.options), streams)
    if config.stage == "talker":
        from python_backends.engine_host.talker_stage import TalkerOptions, TalkerStage

        return TalkerStage(model, TalkerOptions(**config.options), streams)
    if config.stage == "code2wav":
        from python_backends.engine_host.code2wav_stage import Code2WavOptions, Code2WavStage

        return Code2WavStage(model, Code2WavOptions(**config.options), streams)
    raise ValueError(f"unknown stage {config.stage!r}")


def _module_of(stage: str) -> str:
    return f"python_backends.engine_host.{stage}_stage"


def _log_as(instance: str) -> None:
    logging.basicConfig(
        level=os.environ.get("OMNI_LOG_LEVEL", "INFO"),
        format=f"%(asctime)s {instance} %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )


def _preload(line: dict) -> None:
    """Import the engine's libraries. What goes wrong here goes wrong again, and is told, where the engine is built."""
    config = HostConfig(**line)
    os.environ.update(config.env)
    # Threads that wait for products that no engine computes with NumPy, and CUDA that is asked for its devices, would
    # both keep this process from forking.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    _log_as(config.instance.partition("@")[0])
    started = time.monotonic()
    try:
        importlib.import_module(_module_of(config.stage))
        # For a GPU vLLM asks NVML as it is imported, which leaves a thread: each engine would import it once more.
        if config.stage == "thinker" and config.options.get("device", "cpu") == "cpu":
            from python_backends.thinker.engine import ThinkerOptions, preload

            preload(ThinkerOptions(model=config.model, **config.options))
    except Exception:
        log.exception("libraries could not be imported")
    log.info("libraries are imported after %.1f s", time.monotonic() - started)


def _run(line: dict) -> int:
    """One engine from start to end; its exit code."""
    try:
        return run_engine(HostConfig(**line))
    except BaseException:
        log.exception("the engine failed")
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> int:
    return fork_server.serve(_preload, _run)


def run_engine(config: HostConfig) -> int:
    os.environ.update(config.env)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _log_as(config.instance)
    stop, loaded = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Nothing is open before the engine is built, and building it may take minutes.
        signal.signal(number, lambda *_: stop.set() if loaded.is_set() else os._exit(0))
    threading.Thread(target=_watch_parent, args=(config,), name="parent", daemon=True).start()

    import zmq

    from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender
    from python_backends.engine_host.control import ControlServer, answer, report
    from python_backends.engine_host.device_turn import device_turn
    from python_backends.engine_host.progress import LoadProgress
    from python_backends.engine_host.stage import Inbox
    from python_backends.engine_host.streams import Streams

    started = time.monotonic()
    context = zmq.Context()
    sender = ChunkSender(context)
    streams = Streams(config.stage, sender)
    try:
        importlib.import_module(_module_of(config.stage))  # may go beside another's load
        directory = Path(config.control.removeprefix("ipc://")).parent
        with device_turn(directory, config.devices, lambda: report(context, config.control, {"waiting": True})):
            started = time.monotonic()
            with LoadProgress():
                stage = _build_stage(config, streams)
    except Exception as error:
        log.exception("the engine could not be built")
        report(context, config.control, {"failure": f"{type(error).__name__}: {error}"})
        context.destroy(linger=1000)
        return 1
    receiver = ChunkReceiver(context, config.data)
    inbox = Inbox(receiver, streams, stage)
    control = ControlServer(
        context,
        config.control,
        config.calls,
        {
            "open_all": lambda payload: {"answers": [answer(open_one, stream) for stream in payload["streams"]]},
            "abort": lambda payload: abort(payload["stream_id"]),
            "describe": lambda payload: stage.describe(),
            "load": lambda payload: {"open": len(streams)},
            "status": lambda payload: {"instance": config.instance} | stats(),
        },
        lambda: stats(),
    )

    def open_one(payload: dict) -> dict:
        return {"data": receiver.address, "instance": config.instance} | stage.open(payload)

    def abort(stream_id: str) -> dict:
        if streams.drop(stream_id):
            stage.abort(stream_id)
        return {}

    def stats() -> dict:
        return {"open": len(streams), "pid": os.getpid(), "threads": threading.active_count(), **stage.stats()}

    control.hello({"load_s": time.monotonic() - started})
    loaded.set()
    log.info("ready after %.1f s", time.monotonic() - started)
    failed = False
    try:
        stage.run(stop)
    except Exception:
        log.exception("the engine failed")
        failed = True
    control.close()
    inbox.close()
    stage.close()
    streams.close()
    sender.close()
    context.destroy(linger=500)
    return 1 if failed else 0


if __name__ == "__main__":
    # Engines may leave non-daemon threads of their libraries behind; all of ours are closed by now.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
