import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.assignment import Item
from scaling.cost_model import PRIORS, CostModel
from scaling.forecasts import Forecast
from scaling.work import Capacity, Prefixes, actor_seconds, decode_finish, prefill_seconds

COST = CostModel(
    coefficients={**PRIORS, "decode": (0.01, 1e-3, 1e-5), "prefill": (0.1, 0.001)},
    measured=frozenset({"decode", "prefill"}),
)
lengths = st.lists(st.integers(1, 100), min_size=1, max_size=20)


def listed(*tokens: int) -> list[Item]:
    return [Item(str(i), i, float(n)) for i, n in enumerate(tokens)]


def test_worked_example() -> None:
    items = [Item("a", 0, 10.0, prompt_tokens=5), Item("b", 0, 30.0, prompt_tokens=5)]
    finish = decode_finish(items, COST, Capacity())
    assert finish.longest.mean() == 30
    assert finish.rest_s == pytest.approx(40 * 1e-3 + 700 * 1e-5)
    assert actor_seconds(items, COST) == pytest.approx(0.105 + 0.3 + 0.04 + 0.007)


def test_tokens_generated_before_are_prefilled_and_not_generated_again() -> None:
    item = Item("a", 0, 50.0, prompt_tokens=20, generated=40)
    assert decode_finish([item], COST, Capacity()).longest.mean() == 10
    assert prefill_seconds([item], COST, Prefixes()) == pytest.approx(0.1 + 0.06)


def test_samples_beyond_the_rows_wait() -> None:
    # Rows 2: 30 and 20 start; 10 follows at 20 and ends at 30.
    items = listed(30, 20, 10)
    assert decode_finish(items, COST, Capacity(max_batch=2)).longest.mean() == 30
    # In the other order the longest starts at 10.
    assert decode_finish(items[::-1], COST, Capacity(max_batch=2)).longest.mean() == 40


def test_samples_beyond_the_memory_wait() -> None:
    items = listed(30, 30, 30)
    assert decode_finish(items, COST, Capacity(kv_tokens=60)).longest.mean() == 60
    assert decode_finish(items, COST, Capacity(kv_tokens=90)).longest.mean() == 30
    # Charged the longest response there could be, two fit.
    assert decode_finish(items, COST, Capacity(kv_tokens=200, row_tokens=100)).longest.mean() == 60
    # Whoever fits nowhere runs alone.
    assert decode_finish(items, COST, Capacity(kv_tokens=1)).longest.mean() == 90


@given(lengths, st.integers(1, 8))
def test_queueing_keeps_grahams_bounds(tokens: list[int], rows: int) -> None:
    iterations = decode_finish(listed(*tokens), COST, Capacity(max_batch=rows)).longest.mean()
    assert iterations >= max(max(tokens), sum(tokens) / rows) - 1e-9
    assert iterations <= sum(tokens) / rows + max(tokens) * (1 - 1 / rows) + 1e-9


@given(lengths, st.integers(1, 7), st.integers(100, 400))
def test_more_room_for_a_row_never_takes_longer_alone(
    tokens: list[int], rows: int, kv: int
) -> None:
    one = actor_seconds(listed(*tokens), COST, Capacity(max_batch=1))
    assert actor_seconds(listed(*tokens), COST, Capacity(max_batch=rows, kv_tokens=kv)) <= one


def test_a_tail_makes_an_actor_slower_than_its_means_do() -> None:
    forecast = Forecast((10.0, 10.0, 10.0, 90.0), max_tokens=100)
    risky = [Item(str(i), 0, forecast.mean, forecast=forecast) for i in range(8)]
    sure = [Item(str(i), 0, forecast.mean) for i in range(8)]
    assert actor_seconds(risky, COST) > actor_seconds(sure, COST) + 0.01 * 40


def test_prompts_are_prefilled_once_or_for_every_sample() -> None:
    items = [Item(str(i), i // 4, 10.0, prompt_tokens=100) for i in range(8)]
    assert prefill_seconds(items, COST, Prefixes()) == pytest.approx(0.1 + 0.2)
    assert prefill_seconds(items, COST, Prefixes(dedup=False)) == pytest.approx(0.1 + 0.8)


def test_prompts_that_another_actor_has_are_loaded_where_that_is_quicker() -> None:
    items = [Item("a", 0, 10.0, prompt_tokens=100), Item("b", 1, 10.0, prompt_tokens=100)]
    loads = Prefixes(load_s={0: 0.03, 1: 0.3})
    assert prefill_seconds(items, COST, loads, first=True) == pytest.approx(0.1 + 0.2)
    # Group 0 is loaded; loading group 1 would take longer than computing it.
    assert prefill_seconds(items, COST, loads, first=frozenset()) == pytest.approx(0.03 + 0.2)
    stored = Prefixes(load_s={0: 0.03, 1: 0.04}, stored=frozenset({0, 1}))
    assert prefill_seconds(items, COST, stored, first=True) == pytest.approx(0.07)
