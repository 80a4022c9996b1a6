"""Noise, filters and draws against independent arithmetic and transformers' logits processors, on fixed logits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from python_backends.talker.kernels.torch_sampling import candidates, penalise, sample
from python_backends.talker.model.noise import draw_key, stream_key, uniform
from python_backends.talker.model.sampling import RowSampling

VOCAB = 48
DRAWS = 20_000


def row_sampling(rows: int, temperature=0.9, top_k=50, top_p=1.0, group=0, widest=0) -> RowSampling:
    seeds = torch.arange(rows)
    key = draw_key(stream_key(seeds, torch.zeros_like(seeds)), torch.full((rows,), 3), group)
    fill = torch.ones(rows)
    return RowSampling(fill * temperature, (fill * top_k).long(), fill * top_p, key, widest)


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """transformers' warpers in the order of its `generate`."""
    ids = torch.zeros(len(logits), 0, dtype=torch.long)
    logits = TemperatureLogitsWarper(temperature)(ids, logits) if temperature != 1 else logits
    logits = TopKLogitsWarper(top_k)(ids, logits) if top_k else logits
    return TopPLogitsWarper(top_p)(ids, logits) if top_p < 1 else logits


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.3, 0.9, 1.0, 2.5]),
    st.sampled_from([0, 1, 5, 50]),
    st.sampled_from([0.05, 0.5, 0.8, 0.97, 1.0]),
)
def test_filters_equal_transformers(seed, temperature, top_k, top_p):
    logits = 4 * torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(seed))
    for widest in (0, 50):
        kept, tokens = candidates(logits, row_sampling(3, temperature, top_k, top_p, widest=widest if top_k else 0))
        ours = torch.full_like(logits, float("-inf")).scatter(1, tokens, kept)
        torch.testing.assert_close(ours, warped(logits, temperature, top_k, top_p))


def test_penalty_and_suppression_equal_transformers():
    logits = 4 * torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    drawn = torch.tensor([[3, 7, 7], [1, 2, 47]])
    seen = torch.zeros(2, VOCAB, dtype=torch.bool).scatter_(1, drawn, True)
    suppressed = torch.zeros(VOCAB, dtype=torch.bool)
    suppressed[40:46] = True
    expected = RepetitionPenaltyLogitsProcessor(1.05)(drawn, logits)
    expected = SuppressTokensLogitsProcessor(list(range(40, 46)), device="cpu")(drawn, expected)
    ours = penalise(logits, seen, torch.full((2,), 1.05), suppressed, torch.zeros(2, VOCAB, dtype=torch.bool))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.9, 50, 1.0), (1.0, 20, 0.8), (1.7, 0, 1.0), (0.5, 6, 0.9)]
)
def test_draws_follow_transformers_distribution(temperature, top_k, top_p):
    logits = 2 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(5))
    expected = warped(logits, temperature, top_k, top_p).softmax(-1)[0]
    drawn = sample(logits.expand(DRAWS, -1), row_sampling(DRAWS, temperature, top_k, top_p))
    counts = torch.bincount(drawn, minlength=VOCAB).float()
    assert counts[expected == 0].sum() == 0
    likely = expected * DRAWS >= 5
    statistic = ((counts - expected * DRAWS).square() / (expected * DRAWS))[likely].sum()
    freedom = int(likely.sum()) - 1
    # Mean and variance of chi-square are its freedom and twice that; five deviations out is beyond chance.
    assert float(statistic) < freedom + 5 * (2 * freedom) ** 0.5


def test_greedy_takes_the_largest():
    logits = torch.randn(4, VOCAB)
    assert torch.equal(sample(logits, row_sampling(4, temperature=0.0)), logits.argmax(-1))


def plain_mix(bits: int) -> int:
    bits ^= bits >> 16
    bits = bits * 0x7FEB352D % 2**32
    bits ^= bits >> 15
    bits = bits * 0x846CA68B % 2**32
    return bits ^ (bits >> 16)


@given(st.integers(0, 2**64 - 1), st.integers(0, 4095), st.integers(0, 15), st.integers(0, 3071))
@settings(max_examples=100, deadline=None)
def test_noise_is_the_documented_hash(seed, frame, group, token):
    low, high = torch.tensor([seed % 2**32]), torch.tensor([seed >> 32])
    key = draw_key(stream_key(low, high), torch.tensor([frame]), group)
    ours = uniform(key, torch.arange(3072)[None, :])[0, token]
    key = plain_mix(plain_mix(seed % 2**32 ^ 0x9E3779B9) ^ (seed >> 32))
    key = plain_mix(key ^ ((frame * 64 + group) * 0x85EBCA6B % 2**32))
    bits = plain_mix(key ^ (token * 0xC2B2AE35 % 2**32))
    assert float(ours) == ((bits >> 9) + 0.5) / 2**23


def test_noise_is_uniform_and_unrelated_across_its_arguments():
    seeds = torch.arange(64)
    zero = torch.zeros_like(seeds)
    tokens = torch.arange(2048)[None, :]
    keys = [
        draw_key(stream_key(seeds, zero), zero, 0),
        draw_key(stream_key(seeds, zero + 1), zero, 0),
        draw_key(stream_key(seeds, zero), zero + 1, 0),
        draw_key(stream_key(seeds, zero), zero, 1),
    ]
    draws = [uniform(key, tokens) for key in keys]
    for index, one in enumerate(draws):
        assert abs(float(one.mean()) - 0.5) < 5 / (12 * one.numel()) ** 0.5
        histogram = torch.histc(one, 64, 0, 1)
        expected = one.numel() / 64
        assert float(((histogram - expected) ** 2 / expected).sum()) < 63 + 5 * (2 * 63) ** 0.5
        for other in draws[index + 1 :]:
            both = torch.stack([one.flatten(), other.flatten()])
            assert abs(float(torch.corrcoef(both)[0, 1])) < 5 / one.numel() ** 0.5
