import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling import arrays, work
from scaling.cost_model import PRIORS, CostModel
from scaling.forecasts import Forecast
from scaling.items import Dealing, Item, Items
from scaling.tails import Finish
from scaling.work import Capacity, Prefixes, Stack

COST = CostModel(
    coefficients={**PRIORS, "decode": (0.01, 1e-3, 1e-5), "prefill": (0.1, 0.001)},
    measured=frozenset({"decode", "prefill"}),
)
ANY, PLAIN = Capacity(), Prefixes()
lengths = st.lists(st.integers(1, 100), min_size=1, max_size=20)


def finish(
    actors: list[list[Item]], capacity: Capacity = ANY, prefixes: Prefixes = PLAIN
) -> Finish:
    """Of a plan; samples are admitted in the order given."""
    table, stack = stacked(actors)
    return work.finishes(table, stack, COST, capacity, prefixes)


def stacked(actors: list[list[Item]]) -> tuple[Items, Stack]:
    samples = [item for actor in actors for item in actor]
    owner = np.repeat(np.arange(len(actors)), [len(actor) for actor in actors])
    return Items.of(samples), Stack.of([Dealing(np.arange(len(samples)), owner, len(actors))])


def iterations(items: list[Item], capacity: Capacity = ANY) -> float:
    return float(finish([items], capacity).longest.mean()[0])


def actor_seconds(items: list[Item], capacity: Capacity = ANY) -> float:
    return float(finish([items], capacity).mean()[0])


def prefill_seconds(actors: list[list[Item]], prefixes: Prefixes = PLAIN) -> list[float]:
    return work.prefill_seconds(*stacked(actors), COST, prefixes).tolist()


def listed(*tokens: int) -> list[Item]:
    return [Item(str(i), i, float(n)) for i, n in enumerate(tokens)]


def test_worked_example() -> None:
    items = [Item("a", 0, 10.0, prompt_tokens=5), Item("b", 0, 30.0, prompt_tokens=5)]
    assert iterations(items) == 30
    assert finish([items]).rest_s[0] == pytest.approx(0.105 + 40 * 1e-3 + 700 * 1e-5)
    assert actor_seconds(items) == pytest.approx(0.105 + 0.3 + 0.04 + 0.007)


def test_tokens_generated_before_are_prefilled_and_not_generated_again() -> None:
    item = Item("a", 0, 50.0, prompt_tokens=20, generated=40)
    assert iterations([item]) == 10
    assert prefill_seconds([[item]]) == pytest.approx([0.1 + 0.06])


def test_samples_beyond_the_rows_wait() -> None:
    # Rows 2: 30 and 20 start; 10 follows at 20 and ends at 30.
    items = listed(30, 20, 10)
    assert iterations(items, Capacity(max_batch=2)) == 30
    # In the other order the longest starts at 10.
    assert iterations(items[::-1], Capacity(max_batch=2)) == 40


def test_samples_beyond_the_memory_wait() -> None:
    items = listed(30, 30, 30)
    assert iterations(items, Capacity(kv_tokens=60)) == 60
    assert iterations(items, Capacity(kv_tokens=90)) == 30
    # Charged the longest response there could be, two fit.
    assert iterations(items, Capacity(kv_tokens=200, row_tokens=100)) == 60
    # Whoever fits nowhere runs alone.
    assert iterations(items, Capacity(kv_tokens=1)) == 90


@given(lengths, st.integers(1, 8))
def test_queueing_keeps_grahams_bounds(tokens: list[int], rows: int) -> None:
    made = iterations(listed(*tokens), Capacity(max_batch=rows))
    assert made >= max(max(tokens), sum(tokens) / rows) - 1e-9
    assert made <= sum(tokens) / rows + max(tokens) * (1 - 1 / rows) + 1e-9


@given(lengths, st.integers(1, 7), st.integers(100, 400))
def test_more_room_for_a_row_never_takes_longer_alone(
    tokens: list[int], rows: int, kv: int
) -> None:
    one = actor_seconds(listed(*tokens), Capacity(max_batch=1))
    assert actor_seconds(listed(*tokens), Capacity(max_batch=rows, kv_tokens=kv)) <= one


def test_a_tail_makes_an_actor_slower_than_its_means_do() -> None:
    forecast = Forecast((10.0, 10.0, 10.0, 90.0), max_tokens=100)
    risky = [Item(str(i), 0, forecast.mean, forecast=forecast) for i in range(8)]
    sure = [Item(str(i), 0, forecast.mean) for i in range(8)]
    assert actor_seconds(risky) > actor_seconds(sure) + 0.01 * 40


def test_prompts_are_prefilled_once_or_for_every_sample() -> None:
    items = [Item(str(i), i // 4, 10.0, prompt_tokens=100) for i in range(8)]
    assert prefill_seconds([items]) == pytest.approx([0.1 + 0.2])
    assert prefill_seconds([items], Prefixes(dedup=False)) == pytest.approx([0.1 + 0.8])


def test_prompts_that_another_actor_has_are_loaded_where_that_is_quicker() -> None:
    items = [Item("a", 0, 10.0, prompt_tokens=100), Item("b", 1, 10.0, prompt_tokens=100)]
    loads = Prefixes(load_s={0: 0.03, 1: 0.3})
    assert prefill_seconds([items], loads) == pytest.approx([0.1 + 0.2])
    # The second actor loads group 0; loading group 1 would take longer than computing it.
    assert prefill_seconds([items, items], loads) == pytest.approx([0.3, 0.03 + 0.2])
    stored = Prefixes(load_s={0: 0.03, 1: 0.04}, stored=frozenset({0, 1}))
    assert prefill_seconds([items], stored) == pytest.approx([0.07])


def test_what_prompts_have_in_common_is_computed_once_an_actor() -> None:
    items = [Item(str(g), g, 10.0, prompt_tokens=100) for g in range(4)]
    # Segment 7 is common to all, 8 to the last two.
    paths = {g: ((7, 60), *(((8, 30),) if g > 1 else ()), (g, 9)) for g in range(4)}
    shared = Prefixes(segments=paths)
    assert prefill_seconds([items], shared) == pytest.approx([0.1 + 0.4 - 0.18 - 0.03])
    apart = prefill_seconds([items[:3], items[3:]], shared)
    assert apart == pytest.approx([0.1 + 0.3 - 0.12, 0.1 + 0.1])


lists = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 90), st.booleans()),
    min_size=1,
    max_size=24,
)


@given(lists, st.integers(0, 3), st.sampled_from([0, 300]), st.booleans(), st.booleans())
def test_plans_judged_together_are_as_they_are_alone(
    rows: list[tuple[int, int, int, bool]], batch: int, kv_tokens: int, dedup: bool, dense: bool
) -> None:
    forecasts = [Forecast((10.0, 20.0, 30.0 + g), max_tokens=100) for g in range(4)]
    plans: list[list[list[Item]]] = [[[] for _ in range(4)] for _ in range(2)]
    items = []
    for i, (actor, group, tokens, known) in enumerate(rows):
        forecast = None if known else forecasts[group]
        item = Item(str(i), group, float(tokens), 10 * group, forecast=forecast)
        items.append(item)
        plans[0][actor].append(item)
        plans[1][group].append(item)
    table = Items.of(items)
    dealings = [
        Dealing(
            np.array([int(item.id) for actor in plan for item in actor]),
            np.repeat(np.arange(len(plan)), [len(actor) for actor in plan]),
            len(plan),
        )
        for plan in ([actor for actor in plan if actor] for plan in plans)
    ]
    capacity = Capacity(batch, kv_tokens)
    prefixes = Prefixes(dedup, {0: 0.001}, segments={1: ((9, 5),), 2: ((9, 5), (2, 3))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "DENSE", 1000 if dense else 0)
        patch.setattr(arrays, "DENSE", 1000 if dense else 0)
        both = work.finishes(table, Stack.of(dealings), COST, capacity, prefixes)
    alone = [work.finishes(table, Stack.of([d]), COST, capacity, prefixes) for d in dealings]
    assert both.mean().tolist() == pytest.approx([x for f in alone for x in f.mean().tolist()])
    ends = [f.last(np.zeros(len(f.rest_s), np.int64)).item() for f in alone]
    assert both.last(Stack.of(dealings).plan).tolist() == pytest.approx(ends)
