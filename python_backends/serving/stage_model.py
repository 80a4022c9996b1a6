"""The Triton models `thinker`, `talker` and `code2wav`: they open streams and keep an engine process running."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils
import zmq

from python_backends.config.deploy import load_deploy_config
from python_backends.config.errors import OmniError, StageFailed
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.runtime_dir import remove_runtime_dir_if_empty, runtime_dir
from python_backends.connectors.zmq_link import ChunkSender
from python_backends.serving.supervisor import EngineLaunch, EngineSupervisor
from python_backends.serving.triton_io import json_tensor, request_bytes, triton_error

OPEN_TIMEOUT_S = 10.0
log = logging.getLogger(__name__)


class StageModel:
    """Backend class of a stage's model. Subclasses name the stage."""

    stage: str

    def initialize(self, args: dict) -> None:
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {self.stage} %(levelname)s %(message)s")
        if not os.environ.get("OMNI_MODEL"):
            raise StageFailed("set OMNI_MODEL to a checkpoint directory or a hub id")
        deploy = load_deploy_config()
        replica = deploy.replicas[self.stage][0]
        self._runtime_dir = runtime_dir()
        self._reply_addresses: set[str] = set()
        self._sender = ChunkSender(zmq.Context.instance(), timeout_s=2.0)
        self._supervisor = EngineSupervisor(
            EngineLaunch(
                stage=self.stage,
                instance=args["model_instance_name"],
                model=os.environ["OMNI_MODEL"],
                python=os.environ.get("ENGINE_PYTHON") or sys.executable,
                root=Path(__file__).resolve().parents[2],
                runtime_dir=self._runtime_dir,
                options=replica.options,
                env=replica.env,
            ),
            self._engine_died,
        )
        self._supervisor.start(deploy.keys.stage_init_timeout_s)

    def execute(self, requests: list) -> list:
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        """`{"op": "status"}` asks for the engine's counts, `{"op": "open_all", "streams": [...]}` opens streams.

        Any other payload opens one stream.
        """
        try:
            payload = json.loads(request_bytes(request, "request"))
            op = payload.pop("op", "open")
            if op != "status":
                self._reply_addresses.update(one["reply"] for one in payload.get("streams", [payload]))
            reply = self._supervisor.call(op, payload, OPEN_TIMEOUT_S)
            facts = {"data": self._supervisor.data_address, "instance": self._supervisor.instance_epoch}
            return pb_utils.InferenceResponse([json_tensor("reply", facts | reply)])
        except OmniError as error:
            return pb_utils.InferenceResponse(error=triton_error(error))
        except Exception as error:
            log.exception("a call failed")
            return pb_utils.InferenceResponse(error=triton_error(OmniError(f"{type(error).__name__}: {error}")))

    def _engine_died(self, instance: str) -> None:
        """Tell every BLS model that had streams on the process; it knows which."""
        for address in list(self._reply_addresses):
            notice = Chunk("*", self.stage, 0, "abort", True, meta={"instance": instance})
            try:
                self._sender.send(address, [notice])
            except StageFailed as error:
                log.warning("cannot tell %s that %s died: %s", address, instance, error)

    def finalize(self) -> None:
        self._supervisor.close()
        self._sender.close()
        remove_runtime_dir_if_empty(self._runtime_dir)
