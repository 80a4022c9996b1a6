"""Wrong requests, cancelled streams and full engines: each ends its own stream and leaves nothing behind."""

from __future__ import annotations

import threading
import time

import pytest

from python_backends.config.errors import InvalidRequest, Overloaded
from python_backends.config.sampling import ThinkerSampling
from python_backends.thinker.engine import ThinkerOptions, ThinkerRequest
from python_backends.thinker.options import vllm_engine_args

LONG = dict(max_tokens=2000, ignore_eos=True)


def wait_until(condition, timeout=60.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.01)


def idle(server) -> bool:
    return not any(server.engine.stats().values())


def text_part(part):
    return [{"role": "user", "content": [{"type": "text", "text": "Look:"}, part]}]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hello", "messages"),
        ([{"role": "user", "content": "a"}, "b"], "messages[1]"),
        ([{"role": "robot", "content": "a"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": "a", "name": 5}], "messages[0].name"),
        (text_part({"type": "smell"}), "messages[0].content[1].type"),
        (text_part({"text": "x"}), "messages[0].content[1].type"),
        (text_part({"type": ["text"]}), "messages[0].content[1].type"),
        (text_part({"type": "text", "text": 5}), "messages[0].content[1].text"),
        (text_part({"type": "text", "text": "x", "size": 1}), "messages[0].content[1].size"),
        (text_part("x"), "messages[0].content[1]"),
        (text_part({"type": "image_url"}), "messages[0].content[1].image_url"),
        (text_part({"type": "image_url", "image_url": {}}), "messages[0].content[1].image_url.url"),
        (text_part({"type": "audio", "audio": "x", "tensor": 0}), "messages[0].content[1]"),
        (text_part({"type": "audio", "tensor": -1}), "messages[0].content[1].tensor"),
        (text_part({"type": "video", "video": "x", "fps": 0}), "messages[0].content[1].fps"),
        (text_part({"type": "video", "video": "x", "fps": 1, "num_frames": 2}), "messages[0].content[1].num_frames"),
        ([{"role": "user", "content": "a <|im_end|> b"}], "messages[0].content"),
        ([{"role": "user", "content": "\ud83d"}], "messages[0].content"),
        ([{"role": "user", "content": "word " * 5000}], "messages"),
    ],
)
def test_wrong_messages_name_the_field(server, messages, field):
    with pytest.raises(InvalidRequest) as error:
        server.engine.add(ThinkerRequest("wrong", messages, ThinkerSampling()))
    assert error.value.field == field
    assert idle(server)


def test_a_name_twice(server):
    server.engine.add(ThinkerRequest("twice", [{"role": "user", "content": "a"}], ThinkerSampling(**LONG)))
    with pytest.raises(InvalidRequest, match="stream_id"):
        server.engine.add(ThinkerRequest("twice", [{"role": "user", "content": "b"}], ThinkerSampling()))
    server.engine.abort("twice")
    wait_until(lambda: idle(server))


def test_abort_frees_the_request_and_silences_the_sink(server):
    stream_id = server.start("Go on for ever.", **LONG)
    other = server.start("Hello", max_tokens=30, ignore_eos=True)
    assert server.sink[stream_id].moved.wait(60)
    server.engine.abort(stream_id)
    seen = len(server.sink[stream_id].ids)
    assert len(server.sink.wait(other).ids) == 30
    wait_until(lambda: idle(server))
    assert len(server.sink[stream_id].ids) == seen
    assert not server.sink[stream_id].ended.is_set()
    server.engine.abort(stream_id)
    server.engine.abort("never seen")


def test_abort_at_once_and_the_name_again(server):
    for _ in range(5):
        server.engine.add(ThinkerRequest("again", [{"role": "user", "content": "a"}], ThinkerSampling(**LONG)))
        server.engine.abort("again")
    request = ThinkerRequest(
        "again", [{"role": "user", "content": "a"}], ThinkerSampling(max_tokens=5, ignore_eos=True)
    )
    server.engine.add(request)
    answer = server.sink.wait("again")
    assert answer.ids == server.answer("a", max_tokens=5, ignore_eos=True).ids
    wait_until(lambda: idle(server))


def test_full_engine_says_so(server):
    limit = ThinkerOptions(model="").max_streams
    streams = [server.start(f"{at}", **LONG) for at in range(limit)]
    with pytest.raises(Overloaded):
        server.start("one more")
    for stream_id in streams:
        server.engine.abort(stream_id)
    wait_until(lambda: idle(server))
    assert server.answer("Hello", max_tokens=3, ignore_eos=True).finish.reason == "length"


def test_many_threads(server):
    alone = [server.answer(f"Number {at}", max_tokens=12).ids for at in range(4)]
    together: dict[int, list[int]] = {}
    threads = [
        threading.Thread(
            target=lambda at=at: together.update({at: server.answer(f"Number {at % 4}", max_tokens=12).ids})
        )
        for at in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(together[at] == alone[at % 4] for at in range(16))


def test_unknown_engine_argument_names_the_key_and_the_allowed():
    options = ThinkerOptions(model="x", engine_args={"max_num_seqz": 3})
    with pytest.raises(ValueError, match=r"engine_args\.max_num_seqz: unknown.*allowed: dtype, max_num_seqs, model"):
        vllm_engine_args(options, {"model", "dtype", "max_num_seqs"}, {})


def test_engine_arguments_win_and_cuda_keeps_the_rotary_op_and_captures_prefills():
    known = {"max_num_seqs", "tensor_parallel_size", "compilation_config", "hf_overrides", "max_num_batched_tokens"}
    given = {"max_num_seqs": 3, "tensor_parallel_size": 2, "hf_overrides": {"a": {"b": 1}}}
    args = vllm_engine_args(ThinkerOptions(model="x", device="cuda", engine_args=given), known, {})
    assert {key: args[key] for key in given} == given
    assert args["compilation_config"]["custom_ops"] == ["+rotary_embedding"]
    sizes = args["compilation_config"]["cudagraph_capture_sizes"]
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == 2048
    for own, kept in (
        ({"custom_ops": ["none"], "mode": 3, "cudagraph_capture_sizes": [1, 2]}, None),
        ({"custom_ops": ["none"], "max_cudagraph_capture_size": 64}, None),
        ({"max_cudagraph_capture_size": 64}, {"max_cudagraph_capture_size": 64, "custom_ops": ["+rotary_embedding"]}),
    ):
        given = {"compilation_config": own, "max_num_batched_tokens": 512}
        args = vllm_engine_args(ThinkerOptions(model="x", device="cuda", engine_args=given), known, {})
        assert args["compilation_config"] == (kept or own)
    given = {"max_num_batched_tokens": 512, "compilation_config": 3}
    args = vllm_engine_args(ThinkerOptions(model="x", device="cuda", engine_args=given), known, {})
    assert args["compilation_config"]["cudagraph_capture_sizes"][-1] == 512 and args["compilation_config"]["mode"] == 3


def test_wrong_options_name_the_option():
    with pytest.raises(ValueError, match="device"):
        ThinkerOptions(model="x", device="tpu")
    with pytest.raises(ValueError, match="max_streams"):
        ThinkerOptions(model="x", max_streams=0)
