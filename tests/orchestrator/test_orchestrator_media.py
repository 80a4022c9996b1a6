"""Raw media in the orchestrator: checked at once, given to the Thinker alone, let go when it has them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from python_backends.config.stage import ChunkSchedule
from python_backends.orchestrator import request as requests
from python_backends.orchestrator.orchestrator import Orchestrator
from tests.orchestrator.stages import PlayedStages, RecordingResponder
from tests.server import wait_until

BODY = json.dumps({"messages": [{"role": "user", "content": [{"type": "image", "tensor": 0}]}]})
MEDIA = {"IMAGE": np.arange(24, dtype=np.uint8), "IMAGE_SHAPES": np.array([[2, 4, 3]])}


@pytest.fixture
def played(tmp_path):
    stages = PlayedStages(tmp_path)
    orchestrator = Orchestrator(f"ipc://{tmp_path}/bls", stages.open, ChunkSchedule(4, 25))
    yield orchestrator, stages
    orchestrator.close()
    stages.close()


def test_the_thinker_gets_them_and_nobody_keeps_them(played):
    orchestrator, stages = played
    responder = RecordingResponder()
    orchestrator.submit(BODY, responder, MEDIA)
    stages.wait_opened(3)
    payloads = dict(stages.opened)
    assert payloads["thinker"]["media"] is MEDIA
    assert "media" not in payloads["talker"] and "media" not in payloads["code2wav"]
    wait_until(lambda: all(not stream.media for stream in orchestrator._streams.values()), 5, "the media are let go")
    stages.finish("talker", 0, "progress")
    stages.finish("thinker", 0, "text", text="")
    stages.finish("code2wav", 0, "audio")
    assert responder.wait()["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("media", "limit", "field"),
    [
        ({"IMAGE": MEDIA["IMAGE"]}, None, "IMAGE_SHAPES: is required beside IMAGE"),
        (MEDIA | {"IMAGE_SHAPES": np.array([[3, 4, 3]])}, None, "IMAGE_SHAPES[0]: reaches beyond"),
        (MEDIA, len(BODY) + 40, "IMAGE: request and raw media together are larger than"),
    ],
)
def test_what_is_wrong_with_them_ends_the_request_before_any_stage(played, monkeypatch, media, limit, field):
    orchestrator, stages = played
    if limit is not None:
        monkeypatch.setattr(requests, "MAX_REQUEST_BYTES", limit)
    responder = RecordingResponder()
    orchestrator.submit(BODY, responder, media)
    assert responder.wait().code == "invalid_request" and str(responder.result).startswith(field)
    assert not stages.opened
