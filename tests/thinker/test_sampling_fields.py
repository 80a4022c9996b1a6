"""Answers and limits, point 3: the sampling fields that users of vLLM expect, each against `transformers`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, MinPLogitsWarper

from python_backends.config.errors import InvalidRequest
from python_backends.config.sampling import ThinkerSampling
from python_backends.thinker.detokenizer import Detokenizer, TokenBytes
from python_backends.thinker.messages import parse_messages
from python_backends.thinker.prompt import _variables
from python_backends.thinker.stop_strings import StopStrings
from tests.server import wait_until

MESSAGES = [{"role": "user", "content": "Say it again and again."}]
LENGTH = 40


class CountPenalties(LogitsProcessor):
    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self._prompt, self._presence, self._frequency = prompt, presence, frequency

    def __call__(self, input_ids, scores):
        counts = torch.bincount(input_ids[0, self._prompt :], minlength=scores.shape[1]).float()
        return scores - self._frequency * counts - self._presence * (counts > 0)


@pytest.fixture(scope="module")
def plain(oracle):
    return oracle.text(MESSAGES, LENGTH)


def same(answer, expected) -> None:
    assert answer.ids == expected.ids and answer.text == expected.text
    assert answer.finish.reason == ("stop" if expected.stopped else "length")


@pytest.mark.parametrize("presence", [0.0, 1.5])
@pytest.mark.parametrize("frequency", [0.7, -2.0])
def test_presence_and_frequency_penalty(server, oracle, plain, presence, frequency):
    processors = LogitsProcessorList([CountPenalties(len(plain.prompt_ids), presence, frequency)])
    expected = oracle.text(MESSAGES, LENGTH, logits_processor=processors)
    assert expected.ids != plain.ids
    same(server.answer(MESSAGES, max_tokens=LENGTH, presence_penalty=presence, frequency_penalty=frequency), expected)


def test_logit_bias(server, oracle, plain):
    first, other = plain.ids[0], plain.ids[5]
    expected = oracle.text(MESSAGES, LENGTH, sequence_bias=[[[first], -100.0], [[other], 3.0]])
    assert expected.ids != plain.ids
    same(server.answer(MESSAGES, max_tokens=LENGTH, logit_bias={str(first): -100, other: 3}), expected)


def test_min_tokens(server, oracle):
    for text in ("Hi", "Stop now."):
        messages = [{"role": "user", "content": text}]
        same(server.answer(messages, max_tokens=60, min_tokens=50), oracle.text(messages, 60, min_new_tokens=50))


def test_bad_words(server, oracle, plain):
    tokenizer = oracle.tokenizer
    word = next(text for token in plain.ids if (text := tokenizer.decode([token]).strip()).isalpha())
    forms = [tokenizer.encode(form, add_special_tokens=False) for form in (word, " " + word)]
    forms = [forms[0], *([forms[1]] if len(forms[1]) == len(forms[0]) and forms[1][0] != forms[0][0] else [])]
    expected = oracle.text(MESSAGES, LENGTH, bad_words_ids=forms)
    same(server.answer(MESSAGES, max_tokens=LENGTH, bad_words=[word]), expected)


def test_min_p_one_keeps_the_likeliest_id_alone(server, plain):
    same(server.answer(MESSAGES, max_tokens=LENGTH, temperature=1.0, min_p=1.0, seed=3), plain)


@torch.no_grad()
def test_min_p_keeps_what_transformers_keeps(server, oracle, plain):
    answer = server.answer(MESSAGES, max_tokens=LENGTH, temperature=1.0, min_p=0.5, seed=3)
    ids = torch.tensor([plain.prompt_ids + answer.ids])
    scores = oracle.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, len(plain.prompt_ids) - 1 : -1]
    kept = torch.isfinite(MinPLogitsWarper(0.5 - 1e-3)(ids, scores))
    assert kept[range(len(answer.ids)), answer.ids].all()


def test_stop_token_ids_end_the_answer_before_the_id(server, plain):
    stop = plain.ids[7]
    answer = server.answer(MESSAGES, max_tokens=LENGTH, stop_token_ids=[stop])
    assert answer.ids == plain.ids[: plain.ids.index(stop)] and answer.finish.reason == "stop"


@torch.no_grad()
def test_logprobs_are_the_models_own(server, oracle, plain):
    answer = server.answer(MESSAGES, max_tokens=LENGTH, logprobs=True, top_logprobs=3, presence_penalty=1.0)
    ids = torch.tensor([plain.prompt_ids + answer.ids])
    logits = oracle.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, len(plain.prompt_ids) - 1 : -1]
    expected = torch.log_softmax(logits.float(), dim=-1)
    assert [entry["token_id"] for entry in answer.logprobs] == answer.ids
    assert "".join(bytes(entry["bytes"]).decode(errors="replace") for entry in answer.logprobs if entry["bytes"])
    for row, entry in zip(expected, answer.logprobs, strict=True):
        assert entry["logprob"] == pytest.approx(float(row[entry["token_id"]]), abs=1e-3)
        likeliest = [one["logprob"] for one in entry["top_logprobs"][:3]]
        np.testing.assert_allclose(likeliest, row.topk(3).values.numpy(), atol=1e-3)


def test_stop_strings_reach_neither_client_nor_talker(server, oracle, plain):
    text = plain.text
    at = next(at for at in range(8, len(text)) if text[at : at + 4] not in text[: at + 3])
    stop = text[at : at + 4]
    answer = server.answer(MESSAGES, max_tokens=LENGTH, stop=["never there", stop])
    assert answer.text == text[:at] and answer.finish.reason == "stop"
    assert plain.ids[: len(answer.ids)] == answer.ids
    spoken = oracle.tokenizer.decode(answer.ids, skip_special_tokens=True)
    assert answer.text.startswith(spoken) and stop not in spoken
    included = server.answer(MESSAGES, max_tokens=LENGTH, stop=stop, include_stop_str_in_output=True)
    assert included.text == text[: at + 4]
    wait_until(lambda: server.engine.stats()["running"] == 0, 60, "vLLM has stopped too")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_cut_of_every_text_holds_a_stop_string_back(tiny_checkpoint, size):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    for text, stop, want in [
        ("one two three", "two", "one "),
        ("aaab", "aab", "a"),
        ("naïve 你好 there", "你好", "naïve "),
        ("emoji 🙂🙃 end", "🙃", "emoji 🙂"),
        ("nothing here", "herein", "nothing here"),
        ("ab", "abc", "ab"),
    ]:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        stops = StopStrings(ThinkerSampling(stop=stop), Detokenizer(TokenBytes(tokenizer)))
        got, sent = "", []
        for at in range(0, len(ids), size):
            out = stops.feed(ids[at : at + size], [], last=at + size >= len(ids))
            got, sent = got + out.text, sent + out.ids
            assert want.startswith(got)
            if out.stopped:
                break
        assert got == want
        assert want.startswith(tokenizer.decode(sent)), "an id of the stop string was spoken"


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
        ({"structured_outputs": {"regex": "[ab]{3}-[0-9]"}}, lambda text: len(text) == 5 and text[3] == "-"),
        ({"structured_outputs": {"grammar": 'root ::= "left" | "right"'}}, lambda text: text in ("left", "right")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {
                "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                "additionalProperties": False}}}},
            lambda text: isinstance(json.loads(text)["ok"], bool),
        ),
    ],
    ids=["choice", "regex", "grammar", "json_schema"],
)  # fmt: skip
def test_structured_output(server, fields, check):
    answer = server.answer(MESSAGES, max_tokens=200, **fields)
    assert check(answer.text), answer.text
    assert answer.finish.reason == "stop"


def test_json_object_begins_as_one(server):
    answer = server.answer(MESSAGES, max_tokens=20, response_format={"type": "json_object"})
    assert answer.text.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"stop_token_ids": [10_000_000]}, "stop_token_ids"),
        ({"logit_bias": {"10000000": 1}}, "logit_bias"),
        ({"structured_outputs": {"regex": "(("}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::="}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wrong"}}}},
         "response_format"),
    ],
)  # fmt: skip
def test_what_vllm_would_refuse_is_refused_at_the_door(server, fields, field):
    with pytest.raises(InvalidRequest) as error:
        server.answer(MESSAGES, **fields)
    assert error.value.field == f"sampling.thinker.{field}" and "/" not in error.value.reason
    assert server.answer(MESSAGES, max_tokens=2, ignore_eos=True).finish.reason == "length"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"structured_outputs": {"grammar": "root ::= root"}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": 'root ::= "a" never\nnever ::= never'}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}, "response_format"),
    ],
)
def test_a_grammar_without_a_text_is_the_requests_fault(server, fields, field):
    """It compiles; only when ids are picked is there none to pick."""
    with pytest.raises(InvalidRequest) as error:
        server.answer(MESSAGES, **fields)
    assert error.value.field == f"sampling.thinker.{field}"
    assert server.answer(MESSAGES, max_tokens=2, ignore_eos=True).finish.reason == "length"


def test_chat_template_kwargs_are_those_that_the_template_reads(server):
    prompts = server.engine._core.prompts
    conversation = parse_messages(MESSAGES, server.engine._rules)
    with pytest.raises(InvalidRequest) as error:
        prompts.text(conversation, {"enable_thinking": True})
    assert error.value.field == "chat_template_kwargs.enable_thinking"
    template, prompts._template = prompts._template, "{{ style }} {{ messages | length }}"
    variables, prompts.variables = prompts.variables, _variables(prompts._template)
    try:
        assert prompts.variables == {"style": None}.keys()
        assert prompts.text(conversation, {"style": "short"}) == "short 1"
        with pytest.raises(InvalidRequest, match="control token"):
            prompts.text(conversation, {"style": "<|im_end|>"})
    finally:
        prompts._template, prompts.variables = template, variables
