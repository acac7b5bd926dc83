import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling import length_score
from scaling.forecasts import certain
from scaling.length_score import score


def spearman(a: list[float], b: list[float]) -> float | None:
    return length_score.spearman(np.array(a, np.float64), np.array(b, np.float64))


def test_spearman_of_known_data() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [40, 30, 20, 10]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 · 5).
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_nothing_that_varies_has_no_correlation() -> None:
    assert spearman([1, 1], [1, 2]) is None
    assert spearman([], []) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_correlation_is_symmetric_and_bounded(pairs: list[tuple[int, int]]) -> None:
    a, b = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    value = spearman(a, b)
    if value is None:
        assert spearman(b, a) is None
    else:
        assert value == pytest.approx(spearman(b, a))
        assert -1 - 1e-9 <= value <= 1 + 1e-9


def test_score_of_perfect_knowledge() -> None:
    metrics = score({"a": certain(10), "b": certain(20)}, {"a": [10], "b": [20]})
    assert metrics["lengths/rank_correlation"] == pytest.approx(1)
    assert metrics["lengths/mean_error"] == 0
    assert metrics["lengths/coverage_p50"] == 1


def test_mean_error_is_relative_to_the_mean_length() -> None:
    assert score({"a": certain(30)}, {"a": [20, 40]})["lengths/mean_error"] == pytest.approx(1 / 3)


def test_nothing_observed() -> None:
    assert score({"a": certain(30)}, {}) == {}
