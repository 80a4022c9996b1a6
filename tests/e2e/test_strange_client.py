"""The internal models of a real tritonserver, called over the network by somebody who is not `qwen3_omni`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
import zmq
from tritonclient.utils import InferenceServerException

from client.streaming import OmniClient
from python_backends.config.stage import ChunkSchedule
from python_backends.connectors.zmq_link import ChunkReceiver
from tests.e2e.played import key_of
from tests.e2e.test_profiles_rules import PLAYED, PROFILE, SHORT, played_server
from tests.server import STAGES, wait_until

PATIENT_S = 60.0
ADMIN = "model-repository,shared-memory,trace,logging"
RESTRICTED = f"{ADMIN}:admin-key=let-me-in"
OPTIONS = ("--grpc-restricted-protocol", RESTRICTED, "--http-restricted-api", RESTRICTED)


@pytest.fixture(scope="module")
def served(tiny_checkpoint, tmp_path_factory):
    assert PLAYED  # the engines are played: what is refused must not come as far
    with played_server(tiny_checkpoint, tmp_path_factory.mktemp("strange"), PROFILE, options=OPTIONS) as server:
        yield server


def call(server, stage: str, payload) -> dict:
    tensor = triton.InferInput("request", [1], "BYTES")
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    tensor.set_data_from_numpy(np.array([body], dtype=np.object_))
    return json.loads(server.control.infer(stage, [tensor]).as_numpy("reply")[0])


def stream(number: int, reply: str) -> dict:
    return {
        "stream_id": f"strange-{number}", "reply": reply, "sink": reply, "seed": 0, "speaker": "ethan",
        "messages": [{"role": "user", "content": "Hi"}], "sampling": {}, "schedule": asdict(ChunkSchedule(4, 25)),
    }  # fmt: skip


def forms(number: int, reply: str) -> list:
    """Calls that would open a stream, by somebody who knows all but the secret."""
    one = stream(number, reply)
    many = {"op": "open_all", "streams": [one]}
    return [one, many, many | {"key": ""}, many | {"key": "0" * 64}, many | {"key": None}, many | {"key": ["\ud800"]}]


def serves(server) -> bool:
    async def ask():
        async with OmniClient(server.url) as client:
            return await client.ask(SHORT)

    return asyncio.run(ask()).audio.size > 0


def test_320_opens_of_a_strange_client_take_no_slot_and_reach_no_address_of_its_own(served):
    """Nothing is opened, nothing connects to the caller's `reply`, and what it is told shows no path."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reply = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        calls = [(stage, form) for stage in STAGES for form in forms(0, reply)]
        calls += [("talker", forms(number, reply)[number % 6]) for number in range(320)]
        for stage, form in calls:
            with pytest.raises(InferenceServerException) as refused:
                call(served, stage, form)
            assert "opens streams for qwen3_omni alone" in refused.value.message()
            assert "/" not in refused.value.message()
        listener.settimeout(2)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert all(served.status(stage)["open"] == 0 for stage in STAGES)
    assert serves(served)


def test_with_the_secret_the_same_call_opens_a_slot_that_is_freed_when_its_opener_ends(served, tmp_path):
    """What the strange client lacks is the secret alone."""
    context = zmq.Context()
    opener = ChunkReceiver(context, f"ipc://{tmp_path}/opener")
    payload = {"op": "open_all", "key": key_of(served), "streams": [stream(0, opener.address)]}
    assert "ok" in call(served, "talker", payload)["answers"][0]
    assert served.status("talker")["open"] == 1
    opener.close()
    context.destroy(linger=0)
    wait_until(lambda: served.status("talker")["open"] == 0, PATIENT_S, "the slot is free")


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b"7", b"{" * 5000, b"[" * 100_000, b'{"op": "abort", "stream_id": "a"}']
)
def test_any_other_call_of_a_strange_client_is_refused_in_words(served, body):
    with pytest.raises(InferenceServerException, match=r"\[invalid_request\] request"):
        call(served, "talker", body)
    assert serves(served)


def test_status_is_for_everybody_and_shows_no_paths(served):
    for stage in STAGES:
        status = call(served, stage, {"op": "status"})
        assert status["open"] == 0 and "/" not in json.dumps(status)


def test_the_secret_is_this_users_alone(served):
    environment = Path(f"/proc/{served.status('thinker')['pid']}/environ").read_text().split("\0")
    directory = Path(next(line for line in environment if line.startswith("OMNI_RUNTIME_DIR=")).partition("=")[2])
    path = directory / "opener.key"
    assert path.read_text() == key_of(served) and len(key_of(served)) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not list(directory.glob("opener.key.*"))


def test_tritons_restricted_protocols_need_their_key_and_requests_do_not(served):
    """As docs/deploy.md says: `--grpc-restricted-protocol` closes Triton's own administration."""
    with pytest.raises(InferenceServerException, match="restricted"):
        served.control.get_model_repository_index()
    index = f"http://127.0.0.1:{served.http_port}/v2/repository/index"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(index, b""))
    assert urllib.request.urlopen(urllib.request.Request(index, b"", {"admin-key": "let-me-in"})).status == 200
    key = {"triton-grpc-protocol-admin-key": "let-me-in"}
    assert served.control.get_model_repository_index(headers=key).models
    with pytest.raises(InferenceServerException, match="not allowed"):  # the server is not in explicit mode
        served.control.unload_model("talker", headers=key)
    assert serves(served)


def test_status_says_that_a_stage_has_no_living_replica_and_ready_of_triton_251_does_not(served):
    """What docs/deploy.md has a probe ask; newer Tritons ask `is_ready` of the model."""
    os.kill(served.status("thinker")["pid"], signal.SIGKILL)
    refused = None
    deadline = time.monotonic() + PATIENT_S
    while refused is None and time.monotonic() < deadline:
        try:
            call(served, "thinker", {"op": "status"})
        except InferenceServerException as error:
            refused = error.message()
    assert served.control.is_model_ready("qwen3_omni")
    assert "[stage_failed] thinker is not running; it is being restarted" in refused
    wait_until(lambda: answers(served), PATIENT_S, "the Thinker is back")
    assert serves(served)


def answers(server) -> bool:
    try:
        return server.status("thinker")["open"] == 0
    except InferenceServerException:
        return False
