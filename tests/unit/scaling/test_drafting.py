"""How many draft tokens a row gets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.drafting import (
    MATCH_LENGTHS,
    MOST_ACCEPTANCE,
    MOST_FREE,
    PRIOR_RATES,
    Acceptance,
    allot,
    best_length,
    expected_tokens,
    free_tokens,
    match_class,
    of_rows,
)


def each(rows: int, acceptance: float, most: int = 7, free: float = 31.0) -> list[int]:
    return allot(np.full(rows, acceptance), np.full(rows, 99), most, free).tolist()


def test_expected_tokens() -> None:
    assert expected_tokens(0.7, 4) == pytest.approx(2.7731)
    assert expected_tokens(0.0, 4) == 1
    assert expected_tokens(1.0, 4) == 5


def test_worked_example() -> None:
    assert each(1, 0.7)[0] >= 4
    assert each(256, 0.7) == [0] * 256


def test_the_number_falls_with_the_batch() -> None:
    totals = [each(rows, 0.8)[0] for rows in (1, 4, 16, 64, 256)]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] == 7
    assert totals[-1] == 0


def test_rows_whose_drafts_are_accepted_get_them() -> None:
    lengths = allot(np.array([0.9, 0.1] * 32), np.full(64, 8), 8, 64.0)
    assert lengths[0] >= 2
    assert lengths[1] == 0


def test_no_more_than_there_is() -> None:
    assert allot(np.full(3, 0.98), np.array([0, 2, -5]), 8, 1000.0).tolist() == [0, 2, 0]
    assert allot(np.zeros(0), np.zeros(0, np.int64), 8, 10.0).tolist() == []


@given(
    st.lists(st.tuples(st.floats(0, 0.98), st.integers(0, 3)), min_size=1, max_size=4),
    st.floats(0.5, 200),
)
def test_it_is_the_best_of_all_choices(rows: list[tuple[float, int]], free: float) -> None:
    def rate(lengths: tuple[int, ...]) -> float:
        pairs = zip(rows, lengths, strict=True)
        return sum(expected_tokens(a, k) for (a, _), k in pairs) / (free + len(rows) + sum(lengths))

    acceptance = np.array([a for a, _ in rows])
    found = allot(acceptance, np.array([n for _, n in rows]), 3, free)
    best = max(rate(choice) for choice in itertools.product(*(range(n + 1) for _, n in rows)))
    assert rate(tuple(found.tolist())) == pytest.approx(best, rel=1e-9)


def test_one_number_for_all_rows_agrees_with_the_rest() -> None:
    assert best_length(lambda k: 31 + 1 + k, 0.7, 7) == each(1, 0.7)[0]
    assert best_length(lambda k: 31 + 256 * (1 + k), 0.7, 7) == 0


def test_classes_go_by_the_length_of_the_match() -> None:
    assert match_class(np.array([4, 8, 31, 32, 500])).tolist() == [0, 1, 2, 3, 4]
    assert len(PRIOR_RATES) == len(MATCH_LENGTHS) + 1


def test_acceptance_is_what_was_seen_and_drifts_back() -> None:
    start = Acceptance()
    assert start.rates().tolist() == pytest.approx(list(PRIOR_RATES))
    seen = start
    for _ in range(100):
        seen = seen.seen(np.array([0, 0, 4]), np.array([3, 1, 1]), np.array([3, 1, 0]))
    assert seen.rates()[0] > 0.95
    assert seen.rates()[4] < 0.15
    assert seen.rates()[2] == PRIOR_RATES[2]
    nothing = np.zeros(0, np.int64)
    for _ in range(400):
        seen = seen.seen(nothing, nothing, nothing)
    assert seen.rates().tolist() == pytest.approx(list(PRIOR_RATES), abs=0.01)


def test_a_row_that_does_worse_than_its_class_is_believed() -> None:
    rates = of_rows(np.array([0.8, 0.8, 1.0]), np.array([0.0, 40.0, 9.0]), np.array([0, 2.0, 9]))
    assert rates[0] == pytest.approx(0.8)
    assert rates[1] < 0.2
    assert rates[2] == MOST_ACCEPTANCE


def test_free_tokens_are_found_in_the_times() -> None:
    measured = [(n, 0.01 + 0.0001 * n) for n in range(1, 300, 3)]
    assert free_tokens(measured, 8.0) == pytest.approx(100, rel=0.05)
    stalled = [*measured, *((5, 3.0) for _ in range(3))]
    assert free_tokens(stalled, 8.0) == pytest.approx(100, rel=0.05)


def test_times_that_do_not_tell_leave_the_prior() -> None:
    assert free_tokens([], 64.0) == pytest.approx(64)
    assert free_tokens([(4, 0.01)] * 30, 64.0) == pytest.approx(64, rel=0.01)
    assert free_tokens([(n, 0.01) for n in range(1, 200)], 64.0) == MOST_FREE
