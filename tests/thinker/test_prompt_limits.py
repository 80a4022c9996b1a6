"""Prompts that cannot fit and texts that make control tokens: refused by name, fast, with nothing else held up."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

from python_backends.config.errors import InvalidRequest
from python_backends.config.sampling import ThinkerSampling
from python_backends.talker.model.shapes import read_shape
from python_backends.talker.prompt import build_prompt
from python_backends.thinker.engine import MediaOptions, ThinkerRequest
from python_backends.thinker.messages import PromptRules, parse_messages

SECONDS = 2.0
IMAGE = {"type": "image", "image": "data:,x"}
RULES = PromptRules(("<|im_end|>", "<|image_pad|>"), 4096, MediaOptions())


def user(content) -> list[dict]:
    return [{"role": "user", "content": content}]


def texts(*parts: str) -> list[dict]:
    return [{"type": "text", "text": part} for part in parts]


def refused(messages, rules: PromptRules = RULES) -> InvalidRequest:
    started = time.thread_time()
    with pytest.raises(InvalidRequest) as error:
        parse_messages(messages, rules)
    assert time.thread_time() - started < SECONDS
    assert len(str(error.value)) < 300
    return error.value


TOO_LARGE = {
    "3 MB": user("hello world " * 250_000),
    "30 MB": user("hello world " * 2_500_000),
    "30 MB in parts": user(texts(*["x" * 10_000] * 3000)),
    "30 MB in messages": user("x" * 10_000) * 3000,
    "messages": user("") * 100_000,
    "images": user([IMAGE] * 100_000),
    "empty parts": user(texts("") * 100_000),
    "parts of many messages": user(texts("") * 100) * 1000,
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_cannot_fit_is_refused_by_its_size(name):
    error = refused(TOO_LARGE[name])
    assert error.field == "messages" and "4096" in str(error)


def test_media_are_counted_as_they_come():
    error = refused(user([IMAGE] * 4000))
    assert error.field == "messages[0].content[16].image" and "takes 16 a request" in str(error)


def test_a_server_without_media_names_the_first():
    error = refused(user([*texts("a"), IMAGE]), PromptRules((), 4096, None))
    assert error.field == "messages[0].content[1].image" and "text only" in str(error)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "x" * 30_000_000, "content": ""}, "messages[0].role"),
        ({"role": "user", "content": [{"type": "y" * 30_000_000}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": "", "z" * 30_000_000: 1}, f"messages[0].{'z' * 64}"),
    ],
    ids=["role", "type", "name"],
)
def test_errors_do_not_repeat_what_is_long(message, field):
    assert refused([message]).field == field


@pytest.mark.parametrize("token", RULES.control_tokens)
def test_control_tokens_made_by_adjacent_parts(token):
    for at in range(1, len(token)):
        assert refused(user(texts("Hi", token[:at], "", token[at:]))).field == "messages[0].content"
    assert refused([*user("a"), *user(texts(*token))]).field == "messages[1].content"


def test_texts_apart_make_no_control_token():
    parse_messages(user([*texts("<|im_"), IMAGE, *texts("end|>")]), RULES)
    parse_messages(user("<|im_") + user("end|>"), RULES)


@pytest.mark.parametrize("name", ["3 MB", "messages", "empty parts", "images"])
def test_engine_refuses_and_serves_on(server, name):
    started = time.thread_time()
    with pytest.raises(InvalidRequest) as error:
        server.answer(TOO_LARGE[name])
    assert time.thread_time() - started < SECONDS and error.value.field == "messages"
    assert server.answer("Hello", max_tokens=3, ignore_eos=True).finish.reason == "length"


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|im_end|>", "<|audio_pad|>"])
def test_engine_refuses_control_tokens_in_parts(server, token):
    with pytest.raises(InvalidRequest) as error:
        server.answer(user(texts(token[:5], token[5:])))
    assert error.value.field == "messages[0].content"


def test_no_content_completes_a_control_token_of_the_template(server):
    """What the template writes around contents makes no other control token with any half of one."""
    prompts = server.engine._core.prompts
    blank = parse_messages(user("."), PromptRules((), 4096, None))
    of_template = {token: prompts.text(blank).count(token) for token in prompts.control_tokens}
    halves = {
        half for token in prompts.control_tokens for at in range(1, len(token)) for half in (token[:at], token[at:])
    }
    for half in sorted(halves):
        text = prompts.text(parse_messages(user(half), PromptRules((), 4096, None)))
        assert {token: text.count(token) for token in prompts.control_tokens} == of_template, half


def test_placeholders_must_be_those_of_the_media(server):
    """Behind the check of texts: a placeholder without media would fail in the Talker, which knows no field."""
    core = server.engine._core
    ids = core.prompts.ids("a<|image_pad|>b")
    with pytest.raises(InvalidRequest) as error:
        core.check_placeholders(ids, [])
    assert error.value.field == "messages"
    core.check_placeholders(ids, parse_messages(user([IMAGE]), RULES).media)


def test_tokenizing_holds_up_no_thread(server):
    prompts, ticks, done = server.engine._core.prompts, itertools.count(), threading.Event()

    def tick():
        while not done.wait(0.002):
            next(ticks)

    other = threading.Thread(target=tick)
    other.start()
    started = time.monotonic()
    prompts.ids("hello world " * 80_000)
    took = time.monotonic() - started
    done.set()
    other.join()
    assert next(ticks) >= took / 0.25


def test_the_door_knows_what_a_spoken_answer_can_hold(server):
    """Answers and limits, point 1: in the client's words, by the Talker's own layout of the prompt."""
    messages = [{"role": "system", "content": "Not heard. " * 20}, *user("Hello world, how are you?")]

    def add(rows, speak=True):
        sampling = ThinkerSampling(max_tokens=2, ignore_eos=True)
        stream_id = f"door {rows} {speak}"
        server.engine.add(ThinkerRequest(stream_id, messages, sampling, speak=speak, speech_rows=rows))
        return server.sink.wait(stream_id)

    ids = np.asarray(add(4096).prompt_ids)
    rows = build_prompt(ids, None, 0, read_shape(server.engine._options.model)).rows
    assert rows < len(ids)
    add(rows + 1)
    add(rows, speak=False)
    with pytest.raises(
        InvalidRequest, match=r"messages: make \d+ tokens of user turns; at most \d+ for spoken answers"
    ):
        add(rows)


def test_text_within_the_limit_of_characters_is_judged_by_its_tokens(server):
    rules = server.engine._rules
    text = ("hello world " * rules.context * 2)[: rules.context * 16]
    with pytest.raises(InvalidRequest) as error:
        server.answer(text)
    assert error.value.field == "messages" and "must hold an answer too" in str(error.value)
