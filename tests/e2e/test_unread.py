"""Clients that send request after request and read nothing: what they may cost, on a real tritonserver."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os

import grpc
from tritonclient.grpc import service_pb2

from client.streaming import OmniClientError
from scripts.benchmarks.load import METHOD
from tests.e2e.test_profiles_rules import SHORT, Running, played_server, request
from tests.server import PATIENT_S, STAGES, wait_until

STREAMS, EACH, FRAMES = 8, 4, 400  # 98 MB of float32
PROFILE = {
    "base_config": "cpu",
    "max_in_flight": 64,
    "drain_timeout_s": 2.0,
    "max_unread_gb": 0.05,
    "stages": [
        {"stage_id": 0, "engine_options": {"step_ms": 10}},
        {"stage_id": 1, "engine_options": {"step_ms": 1}},
        {"stage_id": 2, "engine_options": {"step_ms": 0}},
    ],
}


class Unread:
    """Streams with answers that nobody reads, until `read`."""

    def __init__(self, url: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(url, options=options) for _ in range(STREAMS)]
        self._calls = [
            channel.stream_stream(METHOD, service_pb2.ModelInferRequest.SerializeToString, lambda raw: raw)()
            for channel in self._channels
        ]

    async def __aenter__(self) -> Unread:
        raw = json.dumps(request(20, FRAMES)).encode()
        message = service_pb2.ModelInferRequest(model_name="qwen3_omni")
        message.inputs.add(name="request", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(len(raw).to_bytes(4, "little") + raw)
        for call in self._calls:
            for _ in range(EACH):
                await call.write(message)
        return self

    async def read(self) -> None:
        """Read all answers to their ends."""
        for call in self._calls:
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass

    async def __aexit__(self, *exc) -> None:
        for channel in self._channels:
            await channel.close()


async def is_refused(running: Running) -> bool:
    try:
        await asyncio.wait_for(running.start(SHORT)[0], PATIENT_S)
    except OmniClientError as error:
        assert error.code == "overloaded" and "max_unread_gb 0.05" in str(error) and error.retry_after_s == 5
        return True
    return False


async def refusals_become(running: Running, refused: bool) -> None:
    async with asyncio.timeout(PATIENT_S):
        while await is_refused(running) is not refused:
            await asyncio.sleep(0.1)


def test_new_requests_are_refused_until_the_answers_are_read(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, PROFILE) as server:

        async def run():
            async with Running(server.url) as running:
                assert not await is_refused(running)
                reader = running.start(request(350, modalities=["text"]))[0]
                async with Unread(server.url) as unread:
                    await refusals_become(running, True)
                    assert not reader.done()
                    assert await asyncio.wait_for(reader, PATIENT_S), "what runs goes on"
                    assert await is_refused(running)
                    await unread.read()
                    await refusals_become(running, False)

        asyncio.run(run())
        log = server.log.read_text(errors="replace")
    assert "new requests are refused: the server holds 0." in log
    assert "requests are taken again" in log


def test_a_server_that_stays_full_ends_though_its_clients_stay(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, PROFILE | {"max_unread_s": 0.5}) as server:
        engines = [server.status(stage)["pid"] for stage in STAGES]

        async def run():
            async with Running(server.url) as running, Unread(server.url):
                await refusals_become(running, True)
                async with asyncio.timeout(PATIENT_S):
                    while server.process.poll() is None:
                        with contextlib.suppress(OmniClientError):
                            await running.start(SHORT)[0]
                        await asyncio.sleep(0.1)

        asyncio.run(run())
        assert server.process.returncode != 0
        assert "for 0.5 s with nothing in flight: the server ends" in server.log.read_text(errors="replace")
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in engines), 5, "the engines have ended")
