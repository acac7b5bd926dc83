import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.regression import fit

rows = st.lists(
    st.tuples(st.floats(0, 1e4), st.floats(0, 1e6), st.floats(0, 1e8), st.floats(1e-6, 1e3)),
    max_size=20,
)


def test_recovers_what_the_data_were_made_with() -> None:
    rng = random.Random(0)
    data = [(rng.uniform(10, 1000), rng.uniform(100, 20000)) for _ in range(40)]
    theta = fit(data, [0.01 * a + 0.0001 * b for a, b in data], (1.0, 0.1))
    assert theta == pytest.approx((0.01, 0.0001), rel=0.01)


def test_stalled_calls_do_not_count() -> None:
    rng = random.Random(1)
    data = [(1.0, rng.uniform(100, 10000)) for _ in range(60)]
    seconds = [(0.1 + 0.001 * b) * rng.lognormvariate(0, 0.05) for _, b in data]
    stalled = [s * (8 if i % 5 == 0 else 1) for i, s in enumerate(seconds)]
    call_s, token_s = fit(data, stalled, (1.0, 0.1))
    for tokens in (100, 1000, 10000):
        assert call_s + token_s * tokens == pytest.approx(0.1 + 0.001 * tokens, rel=0.1)


def test_what_cannot_be_told_apart_stays_in_the_proportion_of_the_prior() -> None:
    # Both features always equal: only the sum of the coefficients is known.
    theta = fit([(x, x) for x in (1.0, 2.0, 3.0)], [3.0, 6.0, 9.0], (2.0, 1.0))
    assert theta == pytest.approx((2.0, 1.0), rel=0.01)


def test_without_data_the_prior() -> None:
    assert fit([], [], (2.0, 1.0)) == (2.0, 1.0)
    assert fit([(0.0, 0.0)], [1.0], (2.0, 1.0)) == (2.0, 1.0)


@given(rows)
def test_coefficients_are_never_negative(data: list[tuple[float, float, float, float]]) -> None:
    theta = fit([row[:3] for row in data], [row[3] for row in data], (1e-2, 1e-4, 1e-7))
    assert all(t >= 0 for t in theta)


@given(st.floats(1e-3, 1e3), st.floats(0.1, 1e3))
def test_one_call_is_explained_exactly_in_scale(feature: float, seconds: float) -> None:
    (theta,) = fit([(feature,)], [seconds], (1.0,))
    assert theta * feature == pytest.approx(seconds)
