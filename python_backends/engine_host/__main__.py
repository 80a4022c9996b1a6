"""The process that one engine runs in: `python -m python_backends.engine_host`, started by a stub.

The first line of standard input is a JSON HostConfig; the end of standard input means that the stub is gone, and the
process ends.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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
    touches the device; `devices` the indices of its devices, on which engines load one after another.
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


def _watch_parent(config: HostConfig) -> None:
    """End this process and its children when the stub closes our standard input, which it also does by dying."""
    sys.stdin.buffer.read()
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


def main() -> int:
    config = HostConfig(**json.loads(sys.stdin.buffer.readline()))
    os.environ.update(config.env)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logging.basicConfig(
        level=os.environ.get("OMNI_LOG_LEVEL", "INFO"),
        format=f"%(asctime)s {config.instance} %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
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
        importlib.import_module(f"python_backends.engine_host.{config.stage}_stage")  # may go beside another's load
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
            "open": lambda payload: open_one(payload),
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
