import json

import pytest

from python_backends.config.errors import InvalidRequest
from python_backends.config.sampling import TalkerSampling, ThinkerSampling
from python_backends.config.schema import keys_of
from python_backends.orchestrator.limits import Timeouts
from python_backends.orchestrator.request import RequestDefaults, parse_request

USER = [{"role": "user", "content": "Hello"}]
STAGES = {"thinker": ThinkerSampling, "talker": TalkerSampling}


def parse(**fields):
    return parse_request(json.dumps({"messages": USER} | fields))


def test_published_defaults():
    request = parse()
    assert request.modalities == ("text", "audio")
    assert (request.thinker.temperature, request.thinker.max_tokens) == (0.0, 2048)
    assert (request.talker.temperature, request.talker.top_k, request.talker.repetition_penalty) == (0.9, 50, 1.05)
    assert (request.talker.max_tokens, request.talker.predictor_top_k, request.talker.predictor_top_p) == (
        4096,
        50,
        0.8,
    )
    assert request.audio_format == "float32" and 0 <= request.seed < 2**31


def test_the_request_beats_the_deploy_defaults_and_these_beat_the_published_ones():
    raw = json.dumps({"messages": USER, "sampling": {"talker": {"top_k": 7}}})
    defaults = {"talker": {"top_k": 9, "temperature": 0.5}, "thinker": {"max_tokens": 5}}
    request = parse_request(raw, RequestDefaults(defaults))
    assert (request.talker.top_k, request.talker.temperature, request.thinker.max_tokens) == (7, 0.5, 5)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ("not json", "request"),
        ("[1]", "request"),
        (b'{"messages": "\xed\xa0\x80"}', "request"),
        (json.dumps({"messages": [{"role": "user", "content": "\ud800"}]}), "messages[0].content"),
        (json.dumps({"messages": [{"role": "\udfff", "content": "x"}]}), "messages[0].role"),
        (json.dumps({"messages": [{"role": "user", "content": "x", "n": 10**40}]}), "messages[0].n"),
        (json.dumps({"messages": [{"role": "user", "content": [{"tensor": -(2**63) - 1}]}]}),
         "messages[0].content[0].tensor"),
        (json.dumps({"messages": USER, "speaker": "\ud800"}), "speaker"),
        (json.dumps({"messages": USER, "sampling": {"\ud800": 1}}), "sampling.\ud800"),
        (json.dumps({"messages": USER, "seed": 2**64}), "seed"),
        ('{"messages": ' + "[" * 40 + "]" * 40 + "}", "messages" + "[0]" * 31),
        ("{}", "messages"),
        ('{"messages": []}', "messages"),
        ('{"messages": "hi"}', "messages"),
        ('{"messages": [1]}', "messages[0]"),
        ('{"messages": [{"content": "x"}]}', "messages[0].role"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content"),
        (json.dumps({"messages": USER, "colour": 1}), "colour"),
        (json.dumps({"messages": USER, "modalities": []}), "modalities"),
        (json.dumps({"messages": USER, "modalities": ["video"]}), "modalities"),
        (json.dumps({"messages": USER, "modalities": ["text", "text"]}), "modalities"),
        (json.dumps({"messages": USER, "modalities": "text"}), "modalities"),
        (json.dumps({"messages": USER, "modalities": [["text"]]}), "modalities"),
        (json.dumps({"messages": USER, "speaker": 3}), "speaker"),
        (json.dumps({"messages": USER, "seed": -1}), "seed"),
        (json.dumps({"messages": USER, "seed": True}), "seed"),
        (json.dumps({"messages": USER, "audio_format": "mp3"}), "audio_format"),
        (json.dumps({"messages": USER, "sampling": []}), "sampling"),
        (json.dumps({"messages": USER, "sampling": {"vocoder": {}}}), "sampling.vocoder"),
        (json.dumps({"messages": USER, "sampling": {"thinker": 3}}), "sampling.thinker"),
        (json.dumps({"messages": USER, "sampling": {"thinker": {"heat": 3}}}), "sampling.thinker.heat"),
        (json.dumps({"messages": USER, "sampling": {"thinker": {"top_k": -2}}}), "sampling.thinker.top_k"),
        (json.dumps({"messages": USER, "sampling": {"thinker": {"top_p": "hot"}}}), "sampling.thinker.top_p"),
        (json.dumps({"messages": USER, "sampling": {"talker": {"max_tokens": 5000}}}), "sampling.talker.max_tokens"),
        (json.dumps({"messages": USER, "sampling": {"talker": {"top_p": 0}}}), "sampling.talker.top_p"),
        (json.dumps({"messages": USER, "sampling": {"talker": {"ignore_eos": 1}}}), "sampling.talker.ignore_eos"),
        (json.dumps({"messages": USER, "timeouts": 3}), "timeouts"),
        (json.dumps({"messages": USER, "timeouts": {"lunch_s": 3}}), "timeouts.lunch_s"),
        (json.dumps({"messages": USER, "timeouts": {"total_s": 0}}), "timeouts.total_s"),
        (json.dumps({"messages": USER, "timeouts": {"queue_s": "soon"}}), "timeouts.queue_s"),
        ('{"messages": [{"role": "user", "content": "x"}], "sampling": {"talker": {"temperature": NaN}}}',
         "sampling.talker.temperature"),
    ],
)  # fmt: skip
def test_bad_requests_name_the_field(raw, field):
    with pytest.raises(InvalidRequest) as caught:
        parse_request(raw)
    assert caught.value.field == field


NULLS = ("modalities", "speaker", "seed", "sampling", "audio_format", "timeouts", "chat_template_kwargs", "request_id")


@pytest.mark.parametrize("name", NULLS)
def test_null_is_the_default_of_every_optional_field(name):
    plain, null = parse(seed=1), parse(**{"seed": 1, name: None})
    assert (null if name != "seed" else parse(seed=1)) == plain
    null_inside = {stage: {key: None for key in keys_of(cls)} for stage, cls in STAGES.items()}
    assert parse(seed=1, sampling=null_inside) == parse(seed=1, sampling={"thinker": None}) == plain
    assert parse(timeouts={"total_s": None}).timeouts == Timeouts()


def test_top_k_of_minus_one_keeps_all():
    request = parse(sampling={"thinker": {"top_k": -1}, "talker": {"top_k": -1, "predictor_top_k": -1}})
    assert (request.thinker.top_k, request.talker.top_k, request.talker.predictor_top_k) == (0, 0, 0)


@pytest.mark.parametrize(
    ("stage", "fields", "path", "words"),
    [
        ("thinker", {"n": 2}, "n", "from 1 to 1"),
        ("thinker", {"temperature": 2.1}, "temperature", "from 0 to 2"),
        ("thinker", {"stop": ""}, "stop", "strings of 1 to"),
        ("thinker", {"stop": ["a"] * 65}, "stop", "at most 64"),
        ("thinker", {"stop_token_ids": [True]}, "stop_token_ids", "token ids"),
        ("thinker", {"min_tokens": 9, "max_tokens": 8}, "min_tokens", "more than max_tokens"),
        ("thinker", {"min_p": 1.1}, "min_p", "from 0 to 1"),
        ("thinker", {"presence_penalty": -2.1}, "presence_penalty", "from -2 to 2"),
        ("thinker", {"frequency_penalty": "x"}, "frequency_penalty", "from -2 to 2"),
        ("thinker", {"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
        ("thinker", {"logit_bias": {"1": 101}}, "logit_bias", "-100 to 100"),
        ("thinker", {"bad_words": [""]}, "bad_words", "strings of 1 to"),
        ("thinker", {"logprobs": 3}, "logprobs", "true or false"),
        ("thinker", {"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ("thinker", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ("thinker", {"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        ("thinker", {"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "JSON schema"),
        ("thinker", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ("thinker", {"structured_outputs": {"rejex": "a"}}, "structured_outputs.rejex", "did you mean regex?"),
        ("thinker", {"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not JSON"),
        (
            "thinker",
            {"structured_outputs": {"json": {"items": {"$ref": "other.json"}}}},
            "structured_outputs.json",
            "#/",
        ),
        ("thinker", {"structured_outputs": {"json": '{"$ref": "file:///a"}'}}, "structured_outputs.json", "#/"),
        (
            "thinker",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"anyOf": [{"$ref": "http://a/b"}]}},
                }
            },
            "response_format.json_schema.schema",
            "#/",
        ),
        ("thinker", {"logit_bias": {"\u0665": 1}}, "logit_bias", "token ids"),
        ("thinker", {"logit_bias": {"05": 1}}, "logit_bias", "token ids"),
        ("thinker", {"presence_penalties": 1}, "presence_penalties", "did you mean presence_penalty?"),
        ("talker", {"stop": "x"}, "stop", "unknown field"),
    ],
)
def test_sampling_fields_are_checked_by_name_and_range(stage, fields, path, words):
    with pytest.raises(InvalidRequest) as caught:
        parse(sampling={stage: fields})
    assert caught.value.field == f"sampling.{stage}.{path}" and words in caught.value.reason


def test_references_inside_a_schema_are_taken():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "$ref": {"const": {"$ref": "data"}}}}
    schema = {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    request = parse(sampling={"thinker": {"structured_outputs": {"json": schema}}})
    assert request.thinker.constraint() == {"json": schema}


def test_other_top_level_fields_are_checked():
    for fields, path in (
        ({"chat_template_kwargs": {"enable_thinking": [1]}}, "chat_template_kwargs.enable_thinking"),
        ({"request_id": "x" * 129}, "request_id"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse(**fields)
        assert caught.value.field == path
    with pytest.raises(InvalidRequest, match="did you mean messages?"):
        parse(message=1)


def test_a_deeply_nested_request_is_an_error_not_a_crash():
    with pytest.raises(InvalidRequest):
        parse_request("[" * 100_000)


def test_a_text_only_server_answers_in_text_and_refuses_audio():
    text_only = RequestDefaults(modalities=("text",))
    assert parse_request(json.dumps({"messages": USER}), text_only).modalities == ("text",)
    with pytest.raises(InvalidRequest, match="modalities: this server answers in text only, not in audio"):
        parse_request(json.dumps({"messages": USER, "modalities": ["text", "audio"]}), text_only)


def test_the_servers_seed_is_for_requests_without_one():
    assert parse_request(json.dumps({"messages": USER}), RequestDefaults(seed=42)).seed == 42
    assert parse_request(json.dumps({"messages": USER, "seed": 7}), RequestDefaults(seed=42)).seed == 7


def test_a_request_may_only_shorten_the_time_limits():
    asked = parse(timeouts={"queue_s": 5, "total_s": 100}).timeouts
    assert asked.within(Timeouts(queue_s=60, first_audio_s=9, total_s=10)) == Timeouts(5, 9, 10)
    assert asked.within(Timeouts()) == Timeouts(5, None, 100)


def test_what_an_error_says_can_be_sent_and_is_short():
    for name in ("\ud800", "a\x00b", "x" * 200_000):
        with pytest.raises(InvalidRequest) as caught:
            parse(**{name: 1})
        text = str(caught.value)
        assert text.encode().decode() == text and len(text) < 1200 and "\0" not in text
        assert "field" in text or "surrogate" in text
