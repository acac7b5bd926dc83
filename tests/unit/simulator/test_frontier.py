import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.frontier import frontier, knee

POINTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40)


def test_what_is_beaten_is_left_out() -> None:
    points = [(5.0, 5.0), (1.0, 10.0), (2.0, 4.0), (2.0, 6.0), (11.0, 0.0), (12.0, 0.0), (2.0, 4.0)]
    assert frontier(points) == (1, 2, 4)
    assert frontier([]) == ()
    assert frontier([(3.0, 3.0)]) == (0,)


@given(POINTS)
def test_every_point_is_beaten_or_matched_by_the_frontier_and_none_of_it_is(
    points: list[tuple[int, int]],
) -> None:
    best = [points[index] for index in frontier(points)]
    assert best == sorted(best)
    assert all(any(t <= time and c <= cost for t, c in best) for time, cost in points)
    for time, cost in best:
        assert not any(t <= time and c <= cost and (t, c) != (time, cost) for t, c in points)


def test_the_knee_is_farthest_below_the_chord() -> None:
    assert knee([(1, 10), (2, 4), (11, 0)]) == 1
    # Amdahl's law: time 1 + 15 / n, cost n times that.
    curve = [(1 + 15 / n, n + 15) for n in (64, 32, 16, 8, 4, 2, 1)]
    found = knee(curve)
    assert found is not None
    assert [64, 32, 16, 8, 4, 2, 1][found] == 8  # 1 / n + n / 64 is least
    # Units do not matter.
    assert knee([(1000 * time, cost / 7) for time, cost in curve]) == found


@pytest.mark.parametrize(
    "points",
    [[], [(1, 1)], [(1, 2), (2, 1)], [(0, 2), (1, 1), (2, 0)], [(0, 10), (5, 9), (6, 0)]],
)
def test_without_a_bend_inwards_there_is_no_knee(points: list[tuple[float, float]]) -> None:
    assert knee(points) is None


@given(POINTS)
def test_a_knee_lies_between_the_ends(points: list[tuple[int, int]]) -> None:
    best = [points[index] for index in frontier(points)]
    found = knee(best)
    assert found is None or 0 < found < len(best) - 1
    assert not best or all(math.isfinite(value) for point in best for value in point)
