"""Sampling against its definition: exact distributions by a fine grid of u, no tolerance games."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.rollout import sampling
from functions.rollout.sampling import Sampler
from rlhfless.messages import SamplingParams

VOCABULARIES = (5, 64, 2048, 2049, 5000)


def reference(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The processed distribution [B, V] by sorting, in float64; temperature, top-k, then top-p."""
    probs = torch.softmax(logits.double() / params.temperature, -1)
    if params.top_k:
        best = probs.topk(min(params.top_k, probs.shape[1]), -1).values[:, -1:]
        probs = torch.where(probs >= best, probs, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if params.top_p < 1:
        ordered, index = probs.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        probs = torch.zeros_like(probs).scatter(
            1, index, torch.where(before < params.top_p, ordered, 0.0)
        )
    return probs / probs.sum(-1, keepdim=True)


def make_logits(rows: int, vocabulary: int, spread: float, seed: int = 0) -> torch.Tensor:
    return spread * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(top_k=3),
        SamplingParams(top_k=70, temperature=1.7),
        SamplingParams(top_p=0.8),
        SamplingParams(top_p=0.3, temperature=0.5),
        SamplingParams(top_k=40, top_p=0.7),
    ],
)
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_processed_distribution(params: SamplingParams, vocabulary: int, spread: float) -> None:
    logits = make_logits(4, vocabulary, spread)
    want = reference(logits, params)
    probs = Sampler(params).probabilities(logits.clone())
    got = (probs / probs.sum(-1, keepdim=True)).double()
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)
    assert ((got > 0) == (want > 0)).all()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_u_picks_the_token_whose_stretch_of_the_cdf_holds_it(vocabulary: int, top_p: float) -> None:
    params = SamplingParams(temperature=0.9, top_p=top_p)
    rows = 512
    logits = make_logits(1, vocabulary, 2.0).expand(rows, -1)
    u = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    tokens, logprobs = Sampler(params)(logits.clone(), u.float())
    probs = reference(logits[:1], params)[0]
    cdf = probs.cumsum(0)
    assert (cdf[tokens] >= u - 1e-5).all()
    assert (cdf[tokens] - probs[tokens] <= u + 1e-5).all()
    torch.testing.assert_close(logprobs.double(), probs[tokens].log(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_extreme_u_never_picks_an_impossible_token(vocabulary: int) -> None:
    logits = make_logits(2, vocabulary, 1.0)
    possible = torch.zeros(vocabulary, dtype=torch.bool)
    possible[vocabulary // 3 : vocabulary // 2] = True
    logits[:, ~possible] = -torch.inf
    u = torch.tensor([0.0, 1.0 - 2.0**-24])
    tokens, logprobs = Sampler(SamplingParams())(logits, u)
    assert tokens.tolist() == [vocabulary // 3, vocabulary // 2 - 1]
    assert torch.isfinite(logprobs).all()


def test_greedy_is_the_arg_max_with_certainty() -> None:
    logits = make_logits(3, 100, 1.0)
    tokens, logprobs = Sampler(SamplingParams(temperature=0.0))(logits.clone(), torch.rand(3))
    assert torch.equal(tokens, logits.argmax(-1))
    assert logprobs.tolist() == [0.0, 0.0, 0.0]


def test_half_precision_logits_are_sampled_in_float32() -> None:
    logits = make_logits(2, 64, 2.0).bfloat16()
    probs = Sampler(SamplingParams()).probabilities(logits)
    assert probs.dtype == torch.float32
    torch.testing.assert_close(probs, torch.softmax(logits.float(), -1))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.floats(0.05, 0.99), st.sampled_from([3, 64, 600, 3000]))
def test_nucleus_is_the_smallest_set_that_reaches_top_p(seed: int, top_p: float, size: int) -> None:
    probs = torch.softmax(make_logits(3, size, 2.5, seed), -1)
    threshold = sampling._threshold(probs, 0, top_p).unsqueeze(1)
    kept = torch.where(probs >= threshold, probs, 0.0)
    smaller = torch.where(probs > threshold, probs, 0.0)
    assert (kept.sum(-1) >= top_p - 1e-5).all()
    assert (smaller.sum(-1) <= top_p + 1e-5).all()


def test_top_k_of_the_whole_vocabulary_truncates_nothing() -> None:
    logits = make_logits(1, 50, 1.0)
    probs = Sampler(SamplingParams(top_k=500)).probabilities(logits.clone())
    assert math.isclose(float(probs.sum()), 1.0, rel_tol=1e-5)
    assert (probs > 0).all()
