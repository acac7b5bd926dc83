from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from functions.training.losses import is_clipped, policy_loss, sample_weights, value_loss
from rlhfless.errors import InternalError


def ratios(*values: float) -> Tensor:
    return torch.tensor([math.log(v) for v in values])


def loss(ratio: float, advantage: float, dual_clip: float | None = None) -> float:
    result = policy_loss(
        ratios(ratio),
        torch.zeros(1),
        torch.tensor([advantage]),
        clip_low=0.2,
        clip_high=0.3,
        dual_clip=dual_clip,
    )
    return float(result)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.6),  # up with A > 0: held at 1.3
        (1.5, -2.0, 3.0),  # up with A < 0: not held
        (0.5, 2.0, -1.0),  # down with A > 0: not held
        (0.5, -2.0, 1.6),  # down with A < 0: held at 0.8
    ],
)
def test_clip_by_hand(ratio: float, advantage: float, expected: float) -> None:
    assert loss(ratio, advantage) == pytest.approx(expected)


def test_dual_clip_bounds_only_negative_advantages() -> None:
    assert loss(10.0, -2.0) == pytest.approx(20.0)
    assert loss(10.0, -2.0, dual_clip=3.0) == pytest.approx(6.0)
    assert loss(0.1, 2.0, dual_clip=3.0) == pytest.approx(-0.2)


def test_first_step_has_the_policy_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantages = torch.tensor([0.5, -3.0])
    policy_loss(
        logprobs, logprobs.detach(), advantages, clip_low=0.2, clip_high=0.2
    ).sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)


def test_is_clipped_marks_the_tokens_without_gradient() -> None:
    new = ratios(1.5, 1.5, 0.5, 0.5, 1.0).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    settings = {"clip_low": 0.2, "clip_high": 0.3}
    policy_loss(new, torch.zeros(5), advantages, **settings).sum().backward()
    marked = is_clipped(new.detach(), torch.zeros(5), advantages, **settings)
    assert new.grad is not None
    assert marked.tolist() == (new.grad == 0).tolist() == [True, False, False, True, False]


def test_value_loss_by_hand() -> None:
    values, old = torch.tensor([2.0, 0.1, 1.0]), torch.zeros(3)
    returns = torch.tensor([1.5, 1.0, 5.0])
    # the first moved too far, but in truth is nearer than its clipped self 0.2: (0.2 - 1.5)^2
    expected = torch.tensor([1.3**2, 0.9**2, 4.8**2])
    torch.testing.assert_close(value_loss(values, old, returns, 0.2), expected)
    torch.testing.assert_close(value_loss(values, old, returns, None), (values - returns).square())


def test_weights_by_hand() -> None:
    lengths = np.array([2, 6], np.int32)
    assert sample_weights(lengths, "token_mean", 0).tolist() == [0.125, 0.125]
    assert sample_weights(lengths, "sequence_mean", 0) == pytest.approx([1 / 4, 1 / 12])
    assert sample_weights(lengths, "sequence_sum", 10) == pytest.approx([1 / 20, 1 / 20])
    with pytest.raises(InternalError, match="max_tokens"):
        sample_weights(lengths, "sequence_sum", 0)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_means_have_weights_that_sum_to_one(aggregation: str) -> None:
    lengths = np.array([1, 4, 9], np.int32)
    weights = sample_weights(lengths, aggregation, 0)  # type: ignore[arg-type]
    assert (weights * lengths).sum() == pytest.approx(1)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=8),
    aggregation=st.sampled_from(["token_mean", "sequence_mean", "sequence_sum"]),
    seed=st.integers(0, 99),
)
def test_shards_add_up_to_the_whole(lengths: list[int], aggregation: str, seed: int) -> None:
    """Every shard weighs by the whole minibatch; the definition is worked out sample by sample."""
    rng = np.random.default_rng(seed)
    losses = [rng.normal(size=n) for n in lengths]
    match aggregation:
        case "token_mean":
            expected = np.concatenate(losses).mean()
        case "sequence_mean":
            expected = np.mean([part.mean() for part in losses])
        case _:
            expected = np.mean([part.sum() / 10 for part in losses])
    weights = sample_weights(np.array(lengths, np.int32), aggregation, 10)  # type: ignore[arg-type]
    shards = np.array_split(rng.permutation(len(lengths)), 3)
    total = sum(weights[i] * losses[i].sum() for shard in shards for i in shard)
    assert total == pytest.approx(expected, rel=1e-5, abs=1e-6)
