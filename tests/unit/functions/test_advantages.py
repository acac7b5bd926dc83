from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.training import advantages as adv
from rlhfless.messages import Algorithm

GROUPS = np.array([7, 3, 7, 3, 7], np.int32)  # neither sorted nor together
REWARDS = np.array([1.0, 5.0, 2.0, 5.0, 6.0])
LENGTHS = np.array([2, 1, 3], np.int32)


def test_group_norm_by_hand() -> None:
    # group 7: 1, 2, 6: mean 3, unbiased variance (4 + 1 + 9) / 2 = 7; group 3: equal rewards
    std = np.sqrt(7) + 1e-6
    expected = [-2 / std, 0, -1 / std, 0, 3 / std]
    assert adv.group_norm(REWARDS, GROUPS) == pytest.approx(expected)


def test_group_mean_and_rloo_by_hand() -> None:
    assert adv.group_mean(REWARDS, GROUPS) == pytest.approx([-2, 0, -1, 0, 3])
    # the mean of the others: 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2
    assert adv.rloo(REWARDS, GROUPS) == pytest.approx([-3, 0, -1.5, 0, 4.5])


@pytest.mark.parametrize("estimate", [adv.group_norm, adv.group_mean, adv.rloo])
def test_nothing_to_compare_gives_exactly_zero(estimate: object) -> None:
    assert callable(estimate)
    equal = np.full(8, 0.1 + 0.2)  # whose mean is off by an ulp
    assert not estimate(equal, np.zeros(8, np.int32)).any()
    assert estimate(np.array([3.0]), np.array([0], np.int32)) == 0  # a group of one


def test_token_rewards_put_the_score_at_the_last_token_and_kl_at_each() -> None:
    kl = np.array([1, 2, 3, 4, 5, 6], np.float32)
    scores = np.array([10, 20, 30], np.float32)
    rewards = adv.token_rewards(scores, LENGTHS, kl, 0.1)
    assert rewards == pytest.approx([-0.1, 9.8, 19.7, -0.4, -0.5, 29.4])


def test_token_rewards_skip_empty_responses() -> None:
    rewards = adv.token_rewards(
        np.array([1, 2, 3], np.float32), np.array([1, 0, 2], np.int32), None, 0.0
    )
    assert rewards.tolist() == [1, 0, 3]


def test_batch_norm_is_the_whitened_reward_to_go() -> None:
    rewards = np.array([1.0, 2, 4, 8, 16, 32])
    to_go = np.array([3.0, 2, 4, 56, 48, 32])
    expected = (to_go - to_go.mean()) / np.sqrt(to_go.var(ddof=1) + 1e-8)
    assert adv.batch_norm(rewards, LENGTHS) == pytest.approx(expected)


def test_gae_by_hand() -> None:
    # one response of two tokens; gamma 0.9, lambda 0.5
    advantages, returns = adv.gae(
        np.array([1.0, 2.0]), np.array([0.5, 1.5], np.float32), np.array([2], np.int32), 0.9, 0.5
    )
    # delta_2 = 2 - 1.5 = 0.5; delta_1 = 1 + 0.9 * 1.5 - 0.5 = 1.85; A_1 = 1.85 + 0.45 * 0.5
    assert advantages == pytest.approx([2.075, 0.5])
    assert returns == pytest.approx([2.575, 2.0])


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    gamma=st.floats(0.1, 1.0),
    lam=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
def test_gae_equals_the_plain_loop(lengths: list[int], gamma: float, lam: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=sum(lengths))
    values = rng.normal(size=sum(lengths)).astype(np.float32)
    expected = np.zeros(sum(lengths))
    end = 0
    for length in lengths:
        start, end = end, end + length
        following_value = following_advantage = 0.0
        for t in range(end - 1, start - 1, -1):
            delta = rewards[t] + gamma * following_value - float(values[t])
            following_advantage = delta + gamma * lam * following_advantage
            following_value = float(values[t])
            expected[t] = following_advantage
    found, returns = adv.gae(rewards, values, np.array(lengths, np.int32), gamma, lam)
    assert found == pytest.approx(expected, abs=1e-9)
    assert returns == pytest.approx(expected + values, abs=1e-9)


def test_gae_without_discount_is_reward_to_go_minus_value() -> None:
    algorithm = Algorithm(name="ppo", advantage="gae")
    result = adv.compute(
        algorithm,
        scores=np.array([1, 0, 2], np.float32),
        lengths=LENGTHS,
        groups=np.zeros(3, np.int32),
        values=np.arange(6, dtype=np.float32),
    )
    assert result.returns is not None
    assert result.returns == pytest.approx([1, 1, 0, 2, 2, 2])
    assert result.advantages.mean() == pytest.approx(0, abs=1e-6)
    assert result.advantages.std(ddof=1) == pytest.approx(1)


def test_kl_in_the_reward_reaches_group_advantages_by_the_response_sum() -> None:
    algorithm = Algorithm(name="rloo", advantage="rloo", kl_coefficient=0.5, kl_placement="reward")
    result = adv.compute(
        algorithm,
        scores=np.array([1, 2], np.float32),
        lengths=np.array([2, 1], np.int32),
        groups=np.zeros(2, np.int32),
        kl=np.array([1, 1, 4], np.float32),
    )
    assert result.advantages.tolist() == [0, 0, 0]  # 1 - 0.5 * 2 == 2 - 0.5 * 4
    assert result.returns is None


def test_whiten_of_hardly_anything() -> None:
    assert adv.whiten(np.array([])).tolist() == []
    assert adv.whiten(np.array([5.0])).tolist() == [0.0]


def test_zero_std_groups() -> None:
    assert adv.zero_std(REWARDS, GROUPS).tolist() == [True, False]  # groups 3 and 7
