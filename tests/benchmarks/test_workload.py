"""The workload is the one the reports name."""

import json

from transformers import AutoTokenizer

from python_backends.orchestrator.request import parse_request
from scripts.benchmarks.workload import PROMPT_IDS, perf_analyzer_input, request_body, task, tasks


def test_lengths_are_those_of_the_published_workload():
    lengths = [(item.text_ids, item.frames) for item in tasks(640)]
    assert lengths[0] == (30, 96) and lengths[1] == (37, 118) and lengths[31] == (30, 96)
    assert {text for text, _ in lengths} == set(range(30, 61))
    assert min(frames for _, frames in lengths) == 96 and max(frames for _, frames in lengths) == 192
    assert tasks(640)[7].audio_s == tasks(640)[7].frames * 0.08


def test_prompts_have_128_ids_and_differ_from_the_first_word_on(tiny_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    for item in tasks(20):
        message = [{"role": "user", "content": item.prompt}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert len(ids) == PROMPT_IDS
    every = [item for series in range(3) for item in tasks(640, series=series)]
    assert len({item.prompt for item in every}) == len({item.seed for item in every}) == 3 * 640
    # Not even a block of 16 ids of the prefix cache is shared by many.
    assert len({tuple(item.prompt.split()[:8]) for item in every}) == 3 * 640


def test_a_request_is_valid_and_forces_both_lengths():
    parsed = parse_request(json.dumps(request_body(task(5))))
    assert parsed.thinker.ignore_eos and parsed.talker.ignore_eos
    assert (parsed.thinker.max_tokens, parsed.talker.max_tokens) == (task(5).text_ids, task(5).frames)
    assert (parsed.talker.temperature, parsed.talker.top_k) == (0.9, 50)


def test_perf_analyzer_gets_each_request_once():
    steps = json.loads(perf_analyzer_input(tasks(3)))["data"]
    assert [json.loads(step["request"][0])["seed"] for step in steps] == [0, 1, 2]


def test_scaled_answers_keep_their_proportion():
    assert (task(0, 0.1).text_ids, task(0, 0.1).frames) == (3, 10)
