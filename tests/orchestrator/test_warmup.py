"""The request before the first client's."""

import json
from types import SimpleNamespace

import pytest

from python_backends.config.deploy import load_deploy_config
from python_backends.config.errors import InvalidRequest, StageFailed
from python_backends.orchestrator.warmup import warm_up


class PlayedOrchestrator:
    """Ends every request with `error`, or well."""

    def __init__(self, error=None):
        self.error, self.requests = error, []

    def submit(self, raw, responder, unhurried=False):
        assert unhurried
        self.requests.append(json.loads(raw))
        if self.error:
            responder.error(self.error)
        else:
            responder.send("", None, {"id": "x"})


def test_every_replica_is_warmed_within_the_limits():
    played = PlayedOrchestrator()
    warm_up(played, load_deploy_config("three_gpus_replicas"))
    assert len(played.requests) == 2 and played.requests[0]["modalities"] == ["text", "audio"]
    played = PlayedOrchestrator()
    warm_up(played, load_deploy_config("three_gpus_replicas", ["stages.1.max_in_flight=1"]))
    warm_up(played, load_deploy_config("thinking"))
    assert len(played.requests) == 2 and played.requests[1]["modalities"] == ["text"]


def test_a_stage_that_cannot_serve_stops_the_start_and_a_missing_voice_does_not(caplog):
    deploy = load_deploy_config("cpu")
    with pytest.raises(StageFailed, match="the warm-up request failed: talker died"):
        warm_up(PlayedOrchestrator(StageFailed("talker died")), deploy)
    warm_up(PlayedOrchestrator(InvalidRequest("speaker", "unknown")), deploy)
    assert "speaker: unknown" in caplog.text


def test_a_stage_that_hangs_stops_the_start():
    deploy = load_deploy_config("cpu", ["stage_init_timeout_s=0.01"])
    with pytest.raises(StageFailed, match="did not end in time"):
        warm_up(SimpleNamespace(submit=lambda *args, **more: None), deploy)
