import random
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.forecast_table import ForecastTable
from scaling.forecasts import Forecast
from scaling.tails import Finish, Longest, longest

UNIFORM = Forecast(tuple(float(i) for i in range(1, 101)), max_tokens=100)


def one(forecasts: list[tuple[Forecast, int]], floor: float = 1.0) -> Longest:
    """Of a single actor: so many responses of each forecast."""
    table = ForecastTable.of([forecast for forecast, _ in forecasts])
    number = np.array([[number for _, number in forecasts]])
    most = max(forecast.support[-1] for forecast, _ in forecasts)
    return longest(number @ table.log_within(), np.array([most]), np.array([floor]))


def certain(*tokens: float) -> Longest:
    return Longest(np.array(tokens), np.array(tokens), np.ones((len(tokens), 2)))


def together(finishes: list[Finish]) -> Finish:
    """Actors of one plan."""
    columns = max(f.longest.within.shape[1] for f in finishes)
    within = np.ones((len(finishes), columns))
    for row, f in zip(within, finishes, strict=True):
        row[: f.longest.within.shape[1]] = f.longest.within[0]
    floor = np.concatenate([f.longest.floor for f in finishes])
    most = np.concatenate([f.longest.most for f in finishes])
    rest_s = np.concatenate([f.rest_s for f in finishes])
    return Finish(rest_s, finishes[0].token_s, Longest(floor, most, within))


def last(finish: Finish) -> float:
    return float(finish.last(np.zeros(len(finish.rest_s), np.int64))[0])


supports = st.lists(st.floats(1, 1000), min_size=1, max_size=30).map(lambda x: tuple(sorted(x)))


def test_worked_example() -> None:
    assert one([(UNIFORM, 8)]).mean()[0] == pytest.approx(89, rel=0.03)


@given(supports, st.integers(1, 64), st.floats(1, 1000))
def test_the_longest_lies_between_its_bounds(
    support: tuple[float, ...], number: int, floor: float
) -> None:
    of_some = one([(Forecast(support, 1000), number)], floor).mean()[0]
    assert max(floor, support[0]) * 0.83 <= of_some <= max(floor, support[-1]) * (1 + 1e-9)
    of_more = one([(Forecast(support, 1000), number + 1)], floor).mean()[0]
    assert of_more >= of_some - 1e-9


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
    assert one(forecasts).mean()[0] == pytest.approx(drawn, rel=0.04)


def test_the_last_of_actors_agrees_with_drawing_them() -> None:
    rng = random.Random(1)
    support = tuple(sorted(min(2500.0, rng.lognormvariate(4.5, 1)) for _ in range(128)))
    each = one([(Forecast(support, 2500), 16)])
    actors = together([Finish(np.array([k / 4]), 0.01, each) for k in range(8)])
    drawn = mean(
        max(k / 4 + 0.01 * max(rng.choices(support, k=16)) for k in range(8)) for _ in range(2000)
    )
    assert last(actors) == pytest.approx(drawn, rel=0.04)
    # It is far beyond the slowest expectation, which is what the planner must not overlook.
    assert last(actors) > 1.2 * actors.mean().max()


def test_certain_actors_are_as_late_as_the_latest() -> None:
    actors = Finish(np.array([1.0, 0.5]), 0.01, certain(100.0, 300.0))
    assert actors.mean().tolist() == [2.0, 3.5]
    assert last(actors) == pytest.approx(3.5)


def test_iterations_that_cost_nothing_leave_the_rest() -> None:
    actors = [Finish(np.array([2.0]), 0.0, one([(UNIFORM, 4)]))]
    actors += [Finish(np.array([1.0]), 0.0, certain(9.0))]
    assert last(together(actors)) == pytest.approx(2.0)


def test_plans_are_judged_each_by_itself() -> None:
    actors = Finish(np.array([1.0, 0.5, 7.0]), 0.01, certain(100.0, 300.0, 100.0))
    assert actors.last(np.array([0, 0, 1])).tolist() == pytest.approx([3.5, 8.0])
