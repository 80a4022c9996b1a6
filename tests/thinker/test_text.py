"""Text answers equal `transformers`' greedy ones, alone and together."""

from __future__ import annotations

import pytest

from python_backends.thinker.options import ThinkerOptions

PROMPTS = {
    "word": "Hi",
    "sentence": "Tell me about the sea, please.",
    "chinese": "你好,请介绍一下北京。",
    "emoji": "🙂🙃 ça va?",
    "digits": "1 2 3 4 5 6 7 8 9 10",
    "long": "The quick brown fox jumps over the lazy dog. " * 20,
    "blank": "",
    "code": "def f(x):\n\treturn x ** 2\n",
}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": " two"}]},
    {"role": "assistant", "content": "Three."},
    {"role": "user", "content": "Four?"},
]
MAX_TOKENS = 48


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def check(answer, expected, limit: int = MAX_TOKENS) -> None:
    assert answer.prompt_ids == expected.prompt_ids
    assert answer.ids == expected.ids
    assert answer.text == expected.text
    assert answer.multimodal is None
    assert answer.finish.reason == ("stop" if expected.stopped else "length")
    usage = {"prompt_tokens": len(expected.prompt_ids), "completion_tokens": len(expected.ids)}
    assert answer.finish.usage == usage
    assert len(answer.ids) <= limit


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_ids_equal_transformers(server, oracle, name):
    messages = user(PROMPTS[name])
    check(server.answer(messages, max_tokens=MAX_TOKENS), oracle.text(messages, MAX_TOKENS))


def test_turns_and_parts(server, oracle):
    check(server.answer(TURNS, max_tokens=MAX_TOKENS), oracle.text(TURNS, MAX_TOKENS))


def test_together_as_alone(server, oracle):
    streams = {name: server.start(user(text), max_tokens=MAX_TOKENS) for name, text in PROMPTS.items()}
    for name, stream_id in streams.items():
        check(server.sink.wait(stream_id), oracle.text(user(PROMPTS[name]), MAX_TOKENS))


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_cut_by_max_tokens(server, oracle, limit):
    messages = user("Count to a hundred.")
    check(server.answer(messages, max_tokens=limit), oracle.text(messages, limit), limit)


def test_repetition_penalty_equals_transformers(server, oracle):
    messages = user("Say it again and again.")
    answer = server.answer(messages, max_tokens=MAX_TOKENS, repetition_penalty=1.3)
    check(answer, oracle.text(messages, MAX_TOKENS, repetition_penalty=1.3))


def test_ignore_eos_fills_the_limit_with_other_ids(server, oracle):
    for text in ("Hi", "Stop now.", "1 2 3"):
        answer = server.answer(text, max_tokens=80, ignore_eos=True)
        assert len(answer.ids) == 80
        assert answer.finish.reason == "length"
        assert not set(answer.ids) & set(oracle.end_ids)
        check(answer, oracle.text(user(text), 80, min_new_tokens=80), 80)


def test_seed_repeats_a_sampled_answer(server):
    def sample(seed):
        return server.answer("Tell me a tale.", temperature=1.0, top_k=50, top_p=0.9, max_tokens=40, seed=seed).ids

    first = sample(7)
    assert sample(7) == first
    assert any(sample(seed) != first for seed in (8, 9, 10))


def test_answer_ends_at_the_context(server):
    limit = server.engine.max_model_len
    whole = len(server.answer("ab", max_tokens=1).prompt_ids)
    step = len(server.answer("ab ab", max_tokens=1).prompt_ids) - whole
    text = "ab" + " ab" * ((limit - 8 - whole) // step)
    answer = server.answer(text, max_tokens=limit, ignore_eos=True)
    assert len(answer.prompt_ids) + len(answer.ids) == limit
    assert answer.finish.reason == "length"


def test_warm_up_changes_no_answer(server, oracle):
    """The engine's thread sleeps while nothing is open, so that the core may be used from here."""
    server.engine._core.warm_up(most=300)
    assert server.engine.stats()["running"] == 0
    messages = user(PROMPTS["sentence"])
    check(server.answer(messages, max_tokens=MAX_TOKENS), oracle.text(messages, MAX_TOKENS))


def test_sampled_answers_whose_prompts_take_several_steps(servers, tiny_checkpoint, server):
    """Seeded as the one-step server answers: what a step that ends no prompt draws is nobody's."""
    text = "Tell me a tale of " + "many " * 60

    def sample(of):
        streams = [of.start(text, temperature=1.0, top_k=50, max_tokens=20, seed=seed) for seed in (1, 2, 3)]
        return [of.sink.wait(stream, 60).ids for stream in streams]

    whole = sample(server)
    options = dict(model=str(tiny_checkpoint), dtype="float32", media=None, max_num_seqs=4)
    assert sample(servers.get(ThinkerOptions(engine_args={"max_num_batched_tokens": 16}, **options))) == whole
