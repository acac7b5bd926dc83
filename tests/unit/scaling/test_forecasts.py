import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.forecast_table import grid_points
from scaling.forecasts import Forecast, certain, quantile_blocks

supports = st.lists(st.floats(1, 1000), min_size=1, max_size=40).map(lambda x: tuple(sorted(x)))
forecasts = supports.map(lambda support: Forecast(support, max_tokens=1000))
UNIFORM = Forecast(tuple(float(i) for i in range(1, 101)), max_tokens=100)


def test_quantiles_and_mean_of_a_uniform_forecast() -> None:
    assert UNIFORM.mean == pytest.approx(50.5)
    assert UNIFORM.quantile(0.5) == pytest.approx(50.5)
    assert UNIFORM.quantile(0.9) == pytest.approx(90.5)


@given(forecasts, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise_and_stay_within_the_support(f: Forecast, a: float, b: float) -> None:
    low, high = f.quantile(min(a, b)), f.quantile(max(a, b))
    assert low <= high * (1 + 1e-12)
    assert f.support[0] * (1 - 1e-12) <= low
    assert high <= f.support[-1] * (1 + 1e-12)


@given(forecasts, st.integers(0, 999))
def test_what_remains_is_at_least_a_token_and_within_the_limit(f: Forecast, done: int) -> None:
    assert 1 <= f.remaining(done) <= max(1, f.max_tokens - done)


def test_what_remains_is_conditional_on_survival() -> None:
    # Of those beyond 80 the mean is 90.5; one pseudo-observation says 20 more (the limit).
    assert UNIFORM.remaining(80) == pytest.approx((20 * 10.5 + 20) / 21)


def test_who_outlived_everything_seen_lasts_as_long_again() -> None:
    f = Forecast((10.0, 20.0), max_tokens=1000)
    assert f.remaining(100) == pytest.approx(100)
    assert f.remaining(900) == pytest.approx(100)


def test_the_last_of_many_is_late() -> None:
    assert UNIFORM.late(0, 9) == pytest.approx(91)
    assert UNIFORM.late(80, 1) == pytest.approx(11)
    assert UNIFORM.late(100, 9) == UNIFORM.remaining(100) == 1


@given(forecasts, st.integers(0, 999), st.integers(1, 500))
def test_late_is_at_least_what_is_expected_and_within_the_limit(
    f: Forecast, done: int, number: int
) -> None:
    assert f.remaining(done) <= f.late(done, number) <= max(1, f.max_tokens - done)
    assert f.late(done, number) <= f.late(done, number + 1)


def test_worked_example_of_siblings() -> None:
    f = Forecast((100.0,), max_tokens=1000, between=0.25, scatter=0.25)
    told = f.with_siblings([200] * 4)
    assert told.mean == pytest.approx(100 * math.exp(0.8 * math.log(2)))
    assert told.between == pytest.approx(0.05)


def test_siblings_that_still_run_count_as_far_as_they_got() -> None:
    # Eight siblings beyond 90 of at most 100 say more than eight beyond 10.
    assert UNIFORM.with_siblings([], [90] * 8).mean > UNIFORM.with_siblings([], [10] * 8).mean
    assert UNIFORM.with_siblings([], [0] * 8) is UNIFORM


def test_siblings_who_ended_early_lower_the_prediction_and_narrow_it() -> None:
    told = UNIFORM.with_siblings([10, 11, 12, 9])
    assert told.mean < UNIFORM.mean
    before = UNIFORM.quantile(0.9) / UNIFORM.quantile(0.1)
    assert told.quantile(0.9) / told.quantile(0.1) < before


@given(
    forecasts,
    st.lists(st.integers(1, 1000), max_size=8),
    st.lists(st.integers(0, 999), max_size=8),
)
def test_siblings_keep_a_forecast_well_formed(
    f: Forecast, finished: list[int], running: list[int]
) -> None:
    told = f.with_siblings(finished, running)
    assert all(1 <= length <= f.max_tokens for length in told.support)
    assert list(told.support) == sorted(told.support)
    assert 0 < told.between <= f.between


@given(forecasts)
def test_log_within_is_a_distribution(f: Forecast) -> None:
    logs = f.log_within
    assert list(logs) == sorted(logs)
    assert logs[-1] == 0
    assert grid_points(len(logs))[-1] >= f.support[-1] * (1 - 1e-12)


def test_certain() -> None:
    f = certain(70)
    assert f.mean == f.quantile(0.1) == f.quantile(0.9) == 70


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=300), st.integers(1, 50))
def test_blocks_keep_the_mean_where_they_are_even(values: list[float], count: int) -> None:
    blocks = quantile_blocks(values, count)
    assert len(blocks) <= max(count, 1) or len(values) <= count
    assert blocks == sorted(blocks)
    if len(values) % count == 0 or len(values) <= count:
        assert sum(blocks) / len(blocks) == pytest.approx(sum(values) / len(values))
