"""The Triton models `thinker`, `talker` and `code2wav`: they open streams and keep engine processes running."""

from __future__ import annotations

import hmac
import json
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
import zmq

from python_backends.config.deploy import DeployConfig
from python_backends.config.errors import InvalidRequest, OmniError, StageFailed
from python_backends.config.stage_keys import STAGES
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.runtime_dir import opener_key, remove_runtime_dir_if_empty, runtime_dir
from python_backends.connectors.zmq_link import ChunkSender
from python_backends.serving.replicas import Replicas, answer_of
from python_backends.serving.server_end import (
    ANSWERS,
    STAGE,
    StubWatch,
    announce,
    server_process,
    take_down_after_death,
    withdraw,
)
from python_backends.serving.start import deploy_config_of, has_failed, report_failed_start
from python_backends.serving.supervisor import EngineLaunch, EngineSupervisor
from python_backends.serving.triton_io import (
    collect_what_triton_shares,
    json_tensor,
    media_arrays,
    request_bytes,
    triton_error,
)

log = logging.getLogger(__name__)
_DRAIN_GRACE_S = 0.5


def _json_object(raw: bytes) -> dict:
    try:
        payload = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("request", f"is no JSON: {error}") from error
    if not isinstance(payload, dict):
        raise InvalidRequest("request", "is no JSON object")
    return payload


def _gone(path: Path) -> bool:
    return not path.exists()


class StageModel:
    """Backend class of a stage's model. Subclasses name the stage.

    Each Triton instance looks after its share of the stage's replicas: with as many instances as replicas one each,
    with one instance all of them.
    """

    stage: str

    def initialize(self, args: dict) -> None:
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {self.stage} %(levelname)s %(message)s")
        self._runtime_dir = runtime_dir()
        self._key = opener_key(self._runtime_dir)
        self._sender = ChunkSender(zmq.Context.instance(), timeout_s=2.0)
        self._replicas = Replicas(self._runtime_dir, self.stage)
        self._supervisors: list[EngineSupervisor] = []
        self._name = args["model_instance_name"]
        self._answering: StubWatch | None = None
        self._serves = False
        try:
            self._start(args, deploy_config_of(args))
        except Exception as error:
            report_failed_start(self._runtime_dir, args["model_instance_name"], error)
            self.finalize()
            raise

    def _start(self, args: dict, deploy: DeployConfig) -> None:
        if not os.environ.get("OMNI_MODEL"):
            raise StageFailed("set OMNI_MODEL to a checkpoint directory or a hub id")
        index = int(args["model_instance_name"].rsplit("_", 1)[1])
        count = sum(group["count"] for group in json.loads(args["model_config"])["instance_group"])
        replicas = deploy.replicas.get(self.stage, [])
        self._drain_s = deploy.keys.drain_timeout_s
        for number in range(index, len(replicas), count):
            launch = EngineLaunch(
                stage=self.stage,
                instance=f"{self.stage}-{number}",
                model=os.environ["OMNI_MODEL"],
                python=os.environ.get("ENGINE_PYTHON") or sys.executable,
                root=Path(__file__).resolve().parents[2],
                runtime_dir=self._runtime_dir,
                init_timeout_s=deploy.keys.stage_init_timeout_s,
                options=replicas[number].options,
                env=replicas[number].env,
                memory_fraction=replicas[number].memory_fraction,
                devices=replicas[number].devices,
                triton=server_process(),
            )
            self._supervisors.append(EngineSupervisor(launch, self._engine_died))
            self._supervisors[-1].start()
        for supervisor in self._supervisors:
            supervisor.wait_ready(lambda: has_failed(self._runtime_dir))
        self._serves = bool(replicas)
        self._replicas.count()  # connects to them, for the first request not to wait for that
        self._answering = StubWatch(self._runtime_dir, ANSWERS, take_down_after_death)
        announce(self._runtime_dir, self._name, STAGE)

    def execute(self, requests: list) -> list:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        """`{"op": "status"}` asks for the counts of all replicas; anybody may, over the network too.

        `{"op": "open_all", "key", "streams": [...]}` opens streams, for the models of this server alone: an engine
        connects to whatever address a stream names for its reply, and holds a place for it. It is answered for each
        stream, also with errors: Triton 2.51 never unloads a model whose BLS call was answered with an error response,
        and waits out its exit timeout. Raw media belong to the only stream of a call.
        """
        try:
            payload = _json_object(request_bytes(request, "request"))
            if payload.get("op") == "status":
                reply = self._status()
            else:
                self._check_opener(payload)
                streams = payload["streams"]
                if media := media_arrays(request):
                    (stream,) = streams
                    stream["media"] = media
                reply = {"answers": [answer_of(result) for result in self._open(streams)]}
            return pb_utils.InferenceResponse([json_tensor("reply", reply)])
        except OmniError as error:
            return pb_utils.InferenceResponse(error=triton_error(error))
        except Exception as error:
            log.exception("a call failed")
            return pb_utils.InferenceResponse(error=triton_error(OmniError(f"{type(error).__name__}: {error}")))

    def _check_opener(self, payload: dict) -> None:
        key = payload.get("key")
        if not isinstance(key, str) or not hmac.compare_digest(key.encode(errors="replace"), self._key.encode()):
            raise InvalidRequest("request", f"{self.stage} opens streams for qwen3_omni alone: send requests to that")

    def _open(self, payloads: list[dict]) -> list[dict | OmniError]:
        if not self._serves:
            return [InvalidRequest("modalities", f"this server runs without {self.stage}")] * len(payloads)
        try:
            return self._replicas.open(payloads)
        except OmniError as error:
            return [error.detached()] * len(payloads)
        except Exception as error:
            log.exception("opening %d streams failed", len(payloads))
            return [OmniError(f"{type(error).__name__}: {error}")] * len(payloads)

    def _status(self) -> dict:
        """Streams open on the stage, the counts of each replica, and beside them those of the first."""
        if not self._serves:
            raise InvalidRequest("modalities", f"this server runs without {self.stage}")
        replicas = self._replicas.status()
        if not replicas:
            raise StageFailed(f"{self.stage} is not running; it is being restarted")
        return replicas[0] | {"open": sum(replica["open"] for replica in replicas), "replicas": replicas}

    def _engine_died(self, instance: str) -> None:
        """Tell every BLS model; each knows whether it had streams on that process."""
        self._notify({"instance": instance})

    def _notify(self, meta: dict) -> None:
        for socket in self._runtime_dir.glob("*.replies"):
            try:
                chunk = Chunk("*", self.stage, 0, "abort", True, meta=meta)
                # A BLS model that has ended takes its socket away.
                self._sender.send(f"ipc://{socket}", [chunk], partial(_gone, socket))
            except StageFailed as error:
                log.warning("cannot tell %s of %s: %s", socket.stem, meta, error)

    def _drain(self) -> None:
        """Let the streams end that are open, here and in the stages before, which send to this one to their end: the
        BLS models give them the drain time, then end them."""
        self._notify({"stopping": True})
        deadline = time.monotonic() + self._drain_s + _DRAIN_GRACE_S
        senders = [Replicas(self._runtime_dir, name) for name in STAGES[: STAGES.index(self.stage)]]
        while time.monotonic() < deadline and any(one.open_streams() for one in (self._replicas, *senders)):
            time.sleep(0.05)
        for one in senders:
            one.close()

    def finalize(self) -> None:
        if self._answering is not None:
            self._answering.close()
        withdraw(self._runtime_dir, self._name, STAGE)
        if self._serves:
            self._drain()
        for supervisor in self._supervisors:
            supervisor.ask_to_end()
        for supervisor in self._supervisors:
            supervisor.close()
        self._replicas.close()
        self._sender.close()
        collect_what_triton_shares()
        remove_runtime_dir_if_empty(self._runtime_dir)
