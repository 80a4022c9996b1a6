"""OpenAI's API, what goes wrong: errors as the package's own classes, keys, limits, clients that leave."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request

import openai
import pytest

from tests.client.openai_front import Front
from tests.client.test_openai import HELLO, SPOKEN, pcm, read
from tests.server import PATIENT_S, wait_until

LONG = {
    "thinker": {"ignore_eos": True, "max_tokens": 1500},
    "talker": {"ignore_eos": True, "max_tokens": 1500},
}
BODY = SPOKEN | {"messages": HELLO, "max_tokens": 4, "audio": {"voice": "Ethan", "format": "wav"}}


def post(front, body, key=None, path="/v1/chat/completions"):
    """Status, headers and JSON of an answer; `body`: bytes, or what becomes JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(
            urllib.request.Request(front.url + path, data, headers), timeout=PATIENT_S
        ) as answer:
            return answer.status, answer.headers, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.loads(error.read())


FIELDS = {
    "unknown": ({"temprature": 1}, "temprature"),
    "unknown inside": ({"audio": {"voice": "Ethan", "format": "wav", "rate": 1}}, "audio.rate"),
    "tools": ({"tools": [{"type": "function"}]}, "tools"),
    "two answers": ({"n": 2}, "n"),
    "logprobs": ({"logprobs": True}, "logprobs"),
    "response format": ({"response_format": {"type": "json_object"}}, "response_format.type"),
    "store": ({"store": True}, "store"),
    "a format": ({"audio": {"format": "ogg"}}, "audio.format"),
    "a voice": ({"audio": {"voice": {"id": "nobody"}, "format": "wav"}}, "audio.voice"),
    "a modality": ({"modalities": ["video"]}, "modalities[0]"),
    "twice": ({"modalities": ["text", "text"]}, "modalities"),
    "a number": ({"temperature": "hot"}, "temperature"),
    "a range": ({"temperature": 3}, "temperature"),
    "a length": ({"max_tokens": -1}, "max_tokens"),
    "two lengths": ({"max_completion_tokens": 5}, "max_tokens"),
    "a seed": ({"seed": -1}, "seed"),
    "stop": ({"stop": [1]}, "stop"),
    "stream options": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "of a stage": ({"sampling_params_list": [None, {"top_q": 1}]}, "sampling_params_list[1].top_q"),
    "no stage": ({"sampling": {"speaker": {}}}, "sampling.speaker"),
    "no messages": ({"messages": []}, "messages"),
    "a role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "tool calls": (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls",
    ),
    "an unknown answer": ({"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "messages[0].audio.id"),
    "a part": ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type"),
    "frames": (
        {
            "messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:,"}}]}],
            "mm_processor_kwargs": {"num_frames": 0},
        },
        "mm_processor_kwargs.num_frames",
    ),
    "half a character": ({"\ud800": 1}, "body"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_bad_field_is_named(front, name):
    """`invalid_request` 400 with `param`, by the client's name of the field."""
    change, param = FIELDS[name]
    status, _, body = post(front, BODY | change)
    error = body["error"]
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_request"), error
    assert error["param"] is not None and error["param"].startswith(param) and param in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"seed": 1e999}'])
def test_what_is_no_body(front, body):
    status, _, answer = post(front, body)
    assert status == 400 and answer["error"]["param"]


@pytest.mark.parametrize(
    "content", [b"1e999", b"NaN", b'"\\ud800"', *(b"[" * depth + b"]" * depth for depth in range(100, 1200, 50))]
)
def test_what_json_can_hold(front, content):
    """What Python reads and neither UTF-8, JSON itself nor a stack can hold: never a 500."""
    body = b'{"model": "qwen3_omni", "max_tokens": 1, "messages": [{"role": "user", "content": %s}]}' % content
    status, _, answer = post(front, body)
    assert status == 400 and answer["error"]["param"]


def test_errors_are_the_packages_own(front):
    client = front.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**BODY, presence_penalty=7)
    assert caught.value.param == "presence_penalty" and caught.value.code == "invalid_request"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**BODY | {"model": "gpt-audio"})
    assert caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-audio")
    assert post(front, {}, path="/v1/nowhere")[0] == 404


def test_a_time_that_runs_out(front):
    """Before the first byte a 504; after it an event with the error, and no `[DONE]`."""
    with pytest.raises(openai.InternalServerError) as caught:
        front.client().chat.completions.create(**BODY, extra_body={"sampling": LONG, "timeouts": {"total_s": 0.5}})
    assert caught.value.status_code == 504 and caught.value.code == "timeout"
    assert caught.value.param == "timeouts.total_s"
    extra = {"sampling": LONG, "timeouts": {"total_s": 3}}
    chunks = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in front.client().chat.completions.create(**BODY, stream=True, extra_body=extra):
            chunks.append(chunk)
    assert chunks and caught.value.code == "timeout" and not chunks[-1].choices[0].finish_reason


def outcome(front, name):
    """How many answers ended so."""
    for line in front.get("/metrics").splitlines():
        if line.startswith(f'omni_openai_answers_total{{outcome="{name}"}}'):
            return float(line.split()[-1])
    return 0


def test_too_many_are_told_to_come_back(front, server):
    """`overloaded` is 429 with Retry-After. The streams that fill the server leave, and all stages are free."""
    before = outcome(front, "left")
    body = BODY | {"modalities": ["text"], "max_tokens": 1500}
    extra = {"sampling": {"thinker": LONG["thinker"]}}
    client = front.client()
    streams = [client.chat.completions.create(**body, stream=True, extra_body=extra) for _ in range(20)]
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**body, extra_body=extra)
    assert caught.value.code == "overloaded" and int(caught.value.response.headers["retry-after"]) >= 1
    for stream in streams:
        stream.close()
    server.wait_idle()
    wait_until(lambda: outcome(front, "left") == before + 20, PATIENT_S, "all have left")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_all_stages(front, server, streamed):
    """A broken-off stream, and a connection closed while a whole answer is awaited, cancel the request."""
    before = outcome(front, "left")
    if streamed:
        stream = front.client().chat.completions.create(**BODY, stream=True, extra_body={"sampling": LONG})
        next(chunk for chunk in stream if (audio := chunk.choices[0].delta.audio) and audio.data)
        stream.close()
    else:
        body = json.dumps(BODY | {"sampling": LONG}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", front.port)) as connection:
            connection.sendall(head + f"content-length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: not server.idle(), PATIENT_S, "the request has reached a stage")
    wait_until(lambda: outcome(front, "left") == before + 1, PATIENT_S, "it was noticed")
    server.wait_idle()


def test_sixteen_streams_of_which_four_leave(front, server):
    """The others' text and audio are exactly theirs; descriptors are as before."""
    sampling = {
        "thinker": {"max_tokens": 6},
        "talker": {"temperature": 0, "max_tokens": 12, "ignore_eos": True},
    }

    def ask(at):
        body = BODY | {"messages": [{"role": "user", "content": f"Number {at}"}], "audio": {"format": "pcm16"}}
        extra = {"sampling": LONG if at % 4 == 3 else sampling}
        return front.client().chat.completions.create(**body, stream=True, extra_body=extra)

    def follow(at):
        with ask(at) as stream:
            if at % 4 == 3:
                next(chunk for chunk in stream if (audio := chunk.choices[0].delta.audio) and audio.data)
            else:
                together[at] = read(stream)[:3]

    alone = {at: read(ask(at))[:3] for at in (0, 5, 10)}
    server.wait_idle()
    before, together = front.descriptors(), {}
    threads = [threading.Thread(target=follow, args=(at,)) for at in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENT_S)
    assert sorted(together) == [at for at in range(16) if at % 4 != 3]
    assert {at: together[at] for at in alone} == alone and len(set(together.values())) > 1
    # Up to a frame is trimmed at the ends of an utterance.
    assert {pcm(data).size for _, _, data in together.values()} == {pcm(alone[0][2]).size}
    server.wait_idle()
    wait_until(lambda: front.descriptors() <= before, PATIENT_S, "its connections are closed")


def test_a_server_that_is_gone():
    """Health is 503; a request 500 without inner detail."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"127.0.0.1:{probe.getsockname()[1]}"
    with Front(url) as front:
        with pytest.raises(urllib.error.HTTPError) as caught:
            front.get("/health")
        assert caught.value.code == 503
        with pytest.raises(openai.InternalServerError) as failed:
            front.client().chat.completions.create(model="qwen3_omni", messages=HELLO)
        assert failed.value.code == "disconnected" and url.split(":")[1] not in str(failed.value)
