"""Answers and limits on a real server: capability query, HTTP streaming, names, Triton's own fields, cut speech."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as triton

from client.streaming import Logprobs, OmniClient, OmniClientError, TextDelta

USER = [{"role": "user", "content": "Hello!"}]
TEXT = {"messages": USER, "modalities": ["text"], "sampling": {"thinker": {"max_tokens": 6, "ignore_eos": True}}}


def ask(server, request):
    async def run():
        async with OmniClient(server.url) as client:
            return await client.ask(request)

    return asyncio.run(run())


def call(server, **fields):
    """One gRPC stream with fields of Triton's own API; the summary or the error's words."""
    tensor = triton.InferInput("request", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([json.dumps(TEXT).encode()], dtype=np.object_))

    def requests():
        yield {"model_name": "qwen3_omni", "inputs": [tensor], **fields}

    async def run():
        import tritonclient.grpc.aio as aio

        async def one():
            for request in requests():
                yield request

        found = None
        async with aio.InferenceServerClient(server.url) as client:
            # To its end: a Triton that is cancelled just as it answers can keep hold of the request.
            async for result, error in client.stream_infer(one()):
                if error is not None:
                    found = error.message()
                elif result.as_numpy("summary") is not None:
                    found = json.loads(result.as_numpy("summary")[0])
        return found

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_describe_tells_voices_modalities_limits_and_versions(server):
    facts = ask(server, {"describe": True}).summary
    assert facts["modalities"] == ["text", "audio"] and "ethan" in facts["voices"]
    assert facts["limits"]["in_flight"] > 0 and facts["stages"]["talker"]["context_rows"] == 8192
    assert facts["stages"]["thinker"]["versions"]["vllm"] and facts["stages"]["thinker"]["context_tokens"] == 4096
    assert facts["stages"]["code2wav"] == {"sample_rate": 24000}
    with pytest.raises(OmniClientError, match="may not stand beside describe"):
        ask(server, {"describe": True, "messages": USER})


def test_http_generate_stream_streams_too(server):
    url = f"http://127.0.0.1:{server.http_port}/v2/models/qwen3_omni/generate_stream"
    body = json.dumps({"request": json.dumps(TEXT), "id": "over-http"}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as response:
        lines = [line.decode() for line in response if line.startswith(b"data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    summary = json.loads(events[-1]["summary"])
    assert summary["request_id"] == "over-http" and summary["finish_reason"] == "length"
    assert "".join(event.get("text", "") for event in events) == ask(server, TEXT).text


def test_the_clients_request_id_is_in_summary_and_log(server):
    assert call(server, request_id="from-triton")["request_id"] == "from-triton"
    assert ask(server, TEXT | {"request_id": "from-json"}).summary["request_id"] == "from-json"
    with pytest.raises(OmniClientError):
        ask(server, TEXT | {"request_id": "a-bad-one", "timeouts": {"total_s": 1e-6}})
    assert "request a-bad-one" in server.log.read_text(errors="replace")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parameters": {"temperature": 1}}, "[invalid_request] parameters.temperature"),
        ({"sequence_id": 7, "sequence_start": True}, "[invalid_request] sequence_id"),
        ({"timeout": 1}, "[timeout] total_s"),
    ],
    ids=["parameter", "sequence", "timeout"],
)
def test_tritons_own_fields_are_honoured_or_refused(server, fields, words):
    assert words in call(server, **fields)


def test_logprobs_come_with_deltas_and_in_the_summary(server):
    sampling = {"thinker": {"max_tokens": 6, "ignore_eos": True, "logprobs": True, "top_logprobs": 2}}
    answer = ask(server, TEXT | {"sampling": sampling})
    sent = [entry for event in answer.events if isinstance(event, Logprobs) for entry in event.entries]
    assert sent == answer.summary["logprobs"] and len(sent) == 6
    assert any(isinstance(event, TextDelta) for event in answer.events)


def test_speech_that_is_cut_makes_the_answer_cut(server):
    sampling = {"thinker": {"max_tokens": 400}, "talker": {"max_tokens": 3, "ignore_eos": True, "temperature": 0}}
    summary = ask(server, {"messages": USER, "sampling": sampling}).summary
    assert summary["stages"]["talker"]["finish_reason"] == "length" == summary["finish_reason"]


def test_a_stop_string_is_neither_sent_nor_spoken(server):
    sampling = {"thinker": {"max_tokens": 30, "ignore_eos": True}, "talker": {"max_tokens": 4, "temperature": 0}}
    whole = ask(server, {"messages": USER, "sampling": sampling}).text
    stop = whole[len(whole) // 2 :][:3]
    sampling["thinker"]["stop"] = stop
    answer = ask(server, {"messages": USER, "sampling": sampling})
    assert answer.text == whole[: whole.index(stop)] and answer.summary["stages"]["thinker"]["finish_reason"] == "stop"
