"""The Triton model `qwen3_omni`: the only one that streams to the client."""

from __future__ import annotations

import json
import logging

import triton_python_backend_utils as pb_utils

from python_backends.config.deploy import load_deploy_config
from python_backends.config.errors import OmniError
from python_backends.connectors.runtime_dir import remove_runtime_dir_if_empty, runtime_dir
from python_backends.orchestrator.orchestrator import Orchestrator
from python_backends.serving.responder import TritonResponder
from python_backends.serving.triton_io import json_tensor, request_bytes, split_error


class OmniModel:
    """Backend class of `model_repository/qwen3_omni`."""

    def initialize(self, args: dict) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s qwen3_omni %(levelname)s %(message)s")
        deploy = load_deploy_config()
        self._runtime_dir = runtime_dir()
        self._orchestrator = Orchestrator(
            f"ipc://{self._runtime_dir}/{args['model_instance_name']}.data",
            _open_stage,
            deploy.schedule,
            deploy.adaptive_first_chunk,
            deploy.sampling_defaults,
        )

    def execute(self, requests: list) -> None:
        for request in requests:
            responder = TritonResponder(request)
            try:
                raw = request_bytes(request, "request")
            except OmniError as error:
                responder.error(error)
                continue
            self._orchestrator.submit(raw, responder)

    def finalize(self) -> None:
        self._orchestrator.close()
        remove_runtime_dir_if_empty(self._runtime_dir)


def _open_stage(name: str, payloads: list[dict]) -> list[dict | OmniError]:
    """One short BLS call for several streams. Raises OmniError when the stage's model failed as a whole."""
    response = pb_utils.InferenceRequest(
        model_name=name,
        requested_output_names=["reply"],
        inputs=[json_tensor("request", {"op": "open_all", "streams": payloads})],
    ).exec()
    if response.has_error():
        raise split_error(response.error().message())
    reply = json.loads(pb_utils.get_output_tensor_by_name(response, "reply").as_numpy()[0])
    facts = {"data": reply["data"], "instance": reply["instance"]}
    return [
        facts | answer["ok"] if "ok" in answer else OmniError(answer["error"]["message"], answer["error"]["code"])
        for answer in reply["answers"]
    ]
