"""Requests before the server is ready, so that the first client pays for nothing that happens once."""

from __future__ import annotations

import json
import logging
import threading
import time

import numpy as np

from python_backends.config.deploy import DeployConfig
from python_backends.config.errors import InvalidRequest, OmniError, StageFailed
from python_backends.orchestrator.orchestrator import Orchestrator

log = logging.getLogger(__name__)
WARM_TEXT_IDS = 16
WARM_FRAMES = 48  # reaches chunks of the steady size


class _Waiting:
    """A Responder that keeps only the end."""

    def __init__(self) -> None:
        self.error_seen: OmniError | None = None
        self.done = threading.Event()

    def send(
        self, text: str, audio: np.ndarray | None, summary: dict | None = None, logprobs: list[dict] | None = None
    ) -> None:
        if summary is not None:
            self.done.set()

    def error(self, error: OmniError) -> None:
        self.error_seen = error
        self.done.set()

    def cancelled(self) -> bool:
        return False


def warm_up(orchestrator: Orchestrator, deploy: DeployConfig) -> None:
    """Run a short request through every replica of every stage. Raises StageFailed when one fails."""
    started = time.monotonic()
    request = {
        "messages": [{"role": "user", "content": "Hello!"}],
        "modalities": list(deploy.modalities),
        "sampling": {
            "thinker": {"ignore_eos": True, "max_tokens": WARM_TEXT_IDS},
            "talker": {"ignore_eos": True, "max_tokens": WARM_FRAMES},
        },
    }
    # Sent together they go to one replica each, as each is given to the least loaded.
    places = [stage.max_in_flight for stage in deploy.stages.values() if stage.max_in_flight is not None]
    count = min(max(len(replicas) for replicas in deploy.replicas.values()), deploy.keys.max_in_flight, *places)
    responders = [_Waiting() for _ in range(count)]
    for responder in responders:
        orchestrator.submit(json.dumps(request), responder, unhurried=True)
    for responder in responders:
        if not responder.done.wait(max(0.0, started + deploy.keys.stage_init_timeout_s - time.monotonic())):
            raise StageFailed("the warm-up request did not end in time")
        if responder.error_seen is not None and responder.error_seen.code == InvalidRequest.code:
            # Such as a checkpoint without the default voice: it can serve others.
            log.warning("the warm-up request was refused, the first client will wait longer: %s", responder.error_seen)
        elif responder.error_seen is not None:
            raise StageFailed(f"the warm-up request failed: {responder.error_seen}")
    log.info("warm after %.1f s", time.monotonic() - started)
