"""What counts as a score, and the totals."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.reward.scores import BadScore, to_scores, totals

FINITE = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    "result",
    [
        [1, None, 0.5],
        (True, None, 0.5),
        np.array([1.0, None, 0.5], dtype=object),
        [np.float32(1.0), None, Decimal("0.5")],
    ],
)
def test_numbers_of_many_kinds_become_floats(result: object) -> None:
    scores = to_scores(result, 3)
    assert scores == [1.0, None, 0.5]
    assert [type(s) for s in scores] == [float, type(None), float]


def test_an_array_is_taken_as_a_list() -> None:
    assert to_scores(np.array([0.25, 2.0]), 2) == [0.25, 2.0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "None, not a list"),
        (1.0, "a float, not a list"),
        ("abc", "a str ('abc'), not a list"),
        ({"a": 1.0}, "a dict, not a list"),
        ((x for x in [1.0, 2.0, 3.0]), "a generator, not a list"),
        ([1.0, 2.0], "2 scores for 3 samples"),
        ([], "0 scores for 3 samples"),
    ],
)
def test_what_is_no_list_of_that_length_is_refused(result: object, message: str) -> None:
    with pytest.raises(BadScore) as caught:
        to_scores(result, 3)
    assert message in str(caught.value)
    assert caught.value.sample == -1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (10**400, "inf"),
        ("1.0", "a str ('1.0'), not a number"),
        (b"1", "a bytes (\"b'1'\"), not a number"),
        ([1.0], "a list, not a number"),
        (object, "a type, not a number"),
    ],
)
def test_a_bad_entry_names_its_index(value: object, message: str) -> None:
    with pytest.raises(BadScore) as caught:
        to_scores([0.0, value, 0.0], 3)
    assert str(caught.value).startswith(message)
    assert caught.value.sample == 1


@given(data=st.data(), num_functions=st.integers(1, 5), num_samples=st.integers(0, 8))
def test_totals_equal_the_reference(
    data: st.DataObject, num_functions: int, num_samples: int
) -> None:
    row = st.lists(FINITE | st.none(), min_size=num_samples, max_size=num_samples)
    scores = data.draw(st.lists(row, min_size=num_functions, max_size=num_functions))
    weights = data.draw(st.lists(FINITE, min_size=num_functions, max_size=num_functions))
    # The reference: NaN for "does not apply" and a NaN-ignoring weighted sum, as TRL does it.
    table = np.array([[np.nan if s is None else s for s in r] for r in scores]).reshape(
        num_functions, num_samples
    )
    expected = np.nansum(table * np.array(weights)[:, None], axis=0)
    nothing = np.isnan(table).all(axis=0)
    result = totals(scores, weights, num_samples)
    assert [t is None for t in result] == list(nothing)
    for total, reference in zip(result, expected, strict=True):
        assert total is None or total == pytest.approx(reference, rel=1e-9, abs=1e-3)
