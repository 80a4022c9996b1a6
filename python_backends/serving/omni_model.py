"""The Triton model `qwen3_omni`: the only one that streams to the client."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from functools import partial

import triton_python_backend_utils as pb_utils

from python_backends.config.deploy import DeployConfig
from python_backends.config.errors import OmniError, ShuttingDown, StageFailed
from python_backends.config.exit_timeout import check_drain_time, command_line_of
from python_backends.connectors.runtime_dir import opener_key, remove_runtime_dir_if_empty, runtime_dir
from python_backends.orchestrator.description import describe
from python_backends.orchestrator.limits import Limits, Timeouts
from python_backends.orchestrator.orchestrator import Orchestrator
from python_backends.orchestrator.request import RequestDefaults
from python_backends.orchestrator.warmup import warm_up
from python_backends.serving.lost_start import DONE, lost_model, mark
from python_backends.serving.replicas import Replicas, every_stage_runs, result_of
from python_backends.serving.responder import TritonResponder
from python_backends.serving.server_end import (
    ANSWERS,
    STAGE,
    EndOfServer,
    RuntimeDirWatch,
    StubWatch,
    announce,
    server_process,
    take_the_server_down,
    take_the_server_down_after_its_answers,
    withdraw,
)
from python_backends.serving.start import deploy_config_of, report_failed_start, wait_for_stages
from python_backends.serving.triton_io import (
    checked_name,
    collect_what_triton_shares,
    json_tensor,
    media_arrays,
    media_tensors,
    request_bytes,
)
from python_backends.serving.unread_guard import UnreadGuard, UnreadLimits, anonymous_bytes_of

log = logging.getLogger(__name__)
# What Triton answers to a call on a model that it is about to unload.
_STOPPING = ("Server not ready", "stopped accepting new inference requests")


class OmniModel:
    """Backend class of `model_repository/qwen3_omni`.

    Its `initialize` returns when every stage can serve and is warm, so that Triton's ready endpoint says just that.
    """

    def initialize(self, args: dict) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s qwen3_omni %(levelname)s %(message)s")
        self._runtime_dir = runtime_dir()
        self._socket = self._runtime_dir / f"{args['model_instance_name']}.replies"
        self._orchestrator: Orchestrator | None = None
        self._guard: UnreadGuard | None = None
        self._watches: list[RuntimeDirWatch | StubWatch] = []
        self._end = EndOfServer()
        self._ending = threading.Event()
        try:
            self._start(deploy_config_of(args))
        except BaseException as error:
            report_failed_start(self._runtime_dir, args["model_instance_name"], error)
            self.finalize()
            raise

    def _start(self, deploy: DeployConfig) -> None:
        for note in deploy.notes:
            log.info("%s: %s", deploy.path, note)
        check_drain_time(deploy, command_line_of(server_process()))
        # Triton allows no BLS call before `initialize` has returned: until then streams are opened directly.
        stages = {name: Replicas(self._runtime_dir, name) for name in deploy.stages}
        self._stages = tuple(stages)
        self._open_stage = lambda name, payloads: stages[name].open(payloads)
        self._guard = UnreadGuard(
            UnreadLimits(deploy.keys.max_unread_gb, deploy.keys.max_unread_s),
            lambda: anonymous_bytes_of(server_process()),
            lambda: not self._orchestrator,
            take_the_server_down,
        )
        try:
            self._orchestrator = Orchestrator(
                f"ipc://{self._socket}",
                lambda name, payloads: self._open_stage(name, payloads),
                deploy.schedule,
                RequestDefaults(deploy.sampling_defaults, deploy.seed, deploy.modalities),
                _limits(deploy),
                self._end.begin,
                self._guard.refusal,
            )
            wait_for_stages(self._runtime_dir, stages, deploy)
            self._orchestrator.description = describe(
                deploy, {name: replicas.describe() for name, replicas in stages.items()}
            )
            if deploy.keys.warmup:
                warm_up(self._orchestrator, deploy)
        finally:
            for replicas in stages.values():
                replicas.close()
        self._open_stage = partial(_open_by_call, opener_key(self._runtime_dir))
        self._guard.arm()
        word = announce(self._runtime_dir, self._socket.stem, ANSWERS)
        self._watches = [
            RuntimeDirWatch(self._runtime_dir, [self._socket.name, word.name], self._lost_runtime_dir),
            StubWatch(self._runtime_dir, STAGE, self._end.begin),
        ]
        threading.Thread(target=self._watch_start, args=(list(stages),), name="start", daemon=True).start()

    def _watch_start(self, stages: list[str]) -> None:
        call = partial(_call, opener_key(self._runtime_dir), payloads=[])
        if (name := lost_model(stages, call, self._ending)) is not None:
            mark(self._runtime_dir)
            take_the_server_down(f"{name} has started, and Triton does not know of it")
        elif (
            os.environ.get("OMNI_RUNTIME_DIR") and not self._ending.is_set()
        ):  # serve.sh's, which removes what is in it
            with contextlib.suppress(FileNotFoundError):
                mark(self._runtime_dir, DONE)

    def _lost_runtime_dir(self) -> None:
        """Let what runs go on as at a shutdown, then end: told to stop, Triton's models could not find each other."""
        assert self._orchestrator is not None  # it is looked for once it serves
        self._orchestrator.drain()
        while len(self._orchestrator) and not self._ending.wait(0.1):
            pass
        take_the_server_down_after_its_answers("the runtime directory was removed")

    def execute(self, requests: list) -> None:
        for request in requests:
            responder = TritonResponder(request)
            try:
                name = checked_name(request)
                raw, media = request_bytes(request, "request"), media_arrays(request)
            except OmniError as error:
                responder.error(error)
                continue
            assert self._orchestrator is not None  # Triton calls only what has been initialised
            self._orchestrator.submit(raw, responder, media, request_id=name, total_s=request.timeout() / 1e6 or None)

    def is_ready(self) -> bool:
        """Whether every stage has a replica that can serve. Newer Tritons than 2.51 ask it when they are asked whether
        the model is ready; 2.51 has no way for a model to say so."""
        return every_stage_runs(self._runtime_dir, self._stages)

    def finalize(self) -> None:
        self._ending.set()
        for watch in self._watches:
            watch.close()
        if self._guard is not None:
            self._guard.close()
        if self._orchestrator is not None:
            self._orchestrator.close()
        self._socket.unlink(missing_ok=True)  # ZeroMQ leaves it
        withdraw(self._runtime_dir, self._socket.stem, ANSWERS)
        collect_what_triton_shares()
        remove_runtime_dir_if_empty(self._runtime_dir)
        self._end.finish()


def _limits(deploy: DeployConfig) -> Limits:
    keys = deploy.keys
    stages = {name: stage.max_in_flight for name, stage in deploy.stages.items() if stage.max_in_flight is not None}
    timeouts = Timeouts(keys.timeouts.queue_s, keys.timeouts.first_audio_s, keys.timeouts.total_s)
    return Limits(
        keys.max_in_flight, keys.max_queued, stages, timeouts, keys.drain_timeout_s, keys.max_text_responses_per_s
    )


def _open_by_call(key: str, name: str, payloads: list[dict]) -> list[dict | OmniError]:
    """Short BLS calls: one for each stream with raw media, whose inputs are its own, and one for all the others.

    Raises OmniError when the stage could not be asked.
    """
    plain = [payload for payload in payloads if "media" not in payload]
    answers = iter(_call(key, name, plain)) if plain else iter(())
    return [_call_with_media(key, name, payload) if "media" in payload else next(answers) for payload in payloads]


def _call_with_media(key: str, name: str, payload: dict) -> dict | OmniError:
    plain = {field: value for field, value in payload.items() if field != "media"}
    try:
        return _call(key, name, [plain], payload["media"])[0]
    except OmniError as error:
        return error.detached()


def _call(key: str, name: str, payloads: list[dict], media: dict | None = None) -> list[dict | OmniError]:
    response = pb_utils.InferenceRequest(
        model_name=name,
        requested_output_names=["reply"],
        inputs=[
            json_tensor("request", {"op": "open_all", "key": key, "streams": payloads}),
            *media_tensors(media or {}),
        ],
    ).exec()
    if response.has_error():
        # Triton's own error: a stage puts its errors into the reply.
        message = response.error().message()
        stopping = any(words in message for words in _STOPPING)
        if stopping:
            raise ShuttingDown("the server is shutting down")
        log.error("%s could not be asked: %s", name, message)
        raise StageFailed(f"{name} could not be asked; try again")  # such as a stub that has just died
    reply = json.loads(pb_utils.get_output_tensor_by_name(response, "reply").as_numpy()[0])
    return [result_of(answer) for answer in reply["answers"]]
