"""Which prompts warm vLLM up."""

from __future__ import annotations

from python_backends.thinker.warmup import prompts_of, warm_up_rows


def test_rows_are_even_and_odd_and_reach_the_limit():
    assert warm_up_rows(600) == [128, 129, 256, 257, 512, 513, 599, 600]
    assert warm_up_rows(8192)[-2:] == [8191, 8192]


def test_prompts_fill_the_rows_and_fit_the_context():
    for rows in (1, 99, 100, 101, 250):
        prompts = prompts_of(rows, 100)
        assert sum(map(len, prompts)) == rows
        assert all(0 < len(prompt) <= 100 for prompt in prompts)
