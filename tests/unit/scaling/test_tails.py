import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.forecasts import Forecast
from scaling.tails import Finish, Longest, last, longest

UNIFORM = Forecast(tuple(float(i) for i in range(1, 101)), max_tokens=100)
supports = st.lists(st.floats(1, 1000), min_size=1, max_size=30).map(lambda x: tuple(sorted(x)))


def test_worked_example() -> None:
    assert longest([(UNIFORM, 8)]).mean() == pytest.approx(89, rel=0.03)


@given(supports, st.integers(1, 64), st.floats(1, 1000))
def test_the_longest_lies_between_its_bounds(
    support: tuple[float, ...], number: int, floor: float
) -> None:
    one = longest([(Forecast(support, 1000), number)], floor)
    assert max(floor, support[0]) * 0.83 <= one.mean() <= max(floor, support[-1]) * (1 + 1e-9)
    more = longest([(Forecast(support, 1000), number + 1)], floor)
    assert more.mean() >= one.mean() - 1e-9


def test_the_longest_of_unlike_responses_agrees_with_drawing_them() -> None:
    rng = random.Random(0)
    supports = [
        tuple(sorted(min(2500.0, rng.lognormvariate(4 + g / 4, 1)) for _ in range(128)))
        for g in range(6)
    ]
    forecasts = [(Forecast(support, 2500), 8) for support in supports]
    drawn = mean(
        max(rng.choice(support) for support in supports for _ in range(8)) for _ in range(4000)
    )
    assert longest(forecasts).mean() == pytest.approx(drawn, rel=0.04)


def test_the_last_of_actors_agrees_with_drawing_them() -> None:
    rng = random.Random(1)
    support = tuple(sorted(min(2500.0, rng.lognormvariate(4.5, 1)) for _ in range(128)))
    actors = [
        Finish(rest_s=k / 4, token_s=0.01, longest=longest([(Forecast(support, 2500), 16)]))
        for k in range(8)
    ]
    drawn = mean(
        max(k / 4 + 0.01 * max(rng.choices(support, k=16)) for k in range(8)) for _ in range(2000)
    )
    assert last(actors) == pytest.approx(drawn, rel=0.04)
    # It is far beyond the slowest expectation, which is what the planner must not overlook.
    assert last(actors) > 1.2 * max(actor.mean() for actor in actors)


def test_certain_actors_are_as_late_as_the_latest() -> None:
    actors = [Finish(1.0, 0.01, Longest(100, 100)), Finish(0.5, 0.01, Longest(300, 300))]
    assert [actor.mean() for actor in actors] == [2.0, 3.5]
    assert last(actors) == pytest.approx(3.5)


def test_iterations_that_cost_nothing_leave_the_rest() -> None:
    actors = [Finish(2.0, 0.0, longest([(UNIFORM, 4)])), Finish(1.0, 0.0, Longest(9, 9))]
    assert last(actors) == pytest.approx(2.0)
