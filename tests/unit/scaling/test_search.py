import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling import search


def searched(low: int, high: int, score: dict[int, float]) -> list[int]:
    tried = search.spread(low, high)
    search.refine(tried, lambda number: (0.0, score[number]), lambda _: None)
    return tried


@given(st.integers(1, 500), st.integers(0, 2000), st.lists(st.integers(1, 3000), max_size=5))
def test_what_is_tried_first_spans_the_range(low: int, more: int, kinks: list[int]) -> None:
    high = low + more
    numbers = search.spread(low, high, kinks)
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (low, high)
    assert {kink for kink in kinks if low <= kink <= high} <= set(numbers)
    assert all(b <= a * search.RATIO + 1 for a, b in pairwise(numbers))


@given(st.integers(1, 1024), st.integers(1, 1024))
def test_the_best_of_a_smooth_score_is_found_in_few_attempts(high: int, best: int) -> None:
    score = {n: n / best + best / n for n in range(1, high + 1)}
    tried = searched(1, high, score)
    assert len(tried) <= search.MOST_TRIED
    assert tried == sorted(set(tried))
    assert min(score[n] for n in tried) <= min(score.values()) * (1 + search.FINEST**2)


@pytest.mark.parametrize("best", [1, 2, 17, 999, 1000])
def test_one_number_is_told_from_its_neighbours_where_numbers_are_few(best: int) -> None:
    low = max(1, best - 20)
    score = {n: abs(math.log(n / best)) for n in range(low, low + 41)}
    tried = searched(low, low + 40, score)
    assert min(abs(n - best) for n in tried) <= max(1, search.FINEST * best)
