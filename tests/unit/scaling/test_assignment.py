from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling import assignment
from scaling.items import Dealing, Item, Items

Assignment = list[list[Item]]


def made(samples: list[Item], dealing: Dealing) -> Assignment:
    assert dealing.num_actors == len(set(dealing.owner.tolist()))
    return [[samples[place] for place in actor.tolist()] for actor in dealing.by_actor()]


def random_equal(samples: list[Item], num_actors: int, seed: int = 0) -> Assignment:
    return made(samples, assignment.random_equal(Items.of(samples), num_actors, seed))


def balanced(samples: list[Item], num_actors: int) -> Assignment:
    items = Items.of(samples)
    return made(samples, assignment.balanced(items, num_actors, items.remaining))


def finishing_together(
    samples: list[Item], num_actors: int, longest_s: float = 1.0, token_s: float = 1.0
) -> Assignment:
    items = Items.of(samples)
    return made(samples, assignment.finishing_together(items, num_actors, longest_s, token_s))


def length_sorted(
    samples: list[Item], num_actors: int, longest_s: float = 1.0, token_s: float = 1.0
) -> Assignment:
    items = Items.of(samples)
    return made(samples, assignment.length_sorted(items, num_actors, longest_s, token_s))


def group_affine(samples: list[Item], num_actors: int) -> Assignment:
    items = Items.of(samples)
    return made(samples, assignment.group_affine(items, num_actors, items.remaining))


STRATEGIES: list[Callable[[list[Item], int], Assignment]] = [
    random_equal,
    balanced,
    finishing_together,
    length_sorted,
    group_affine,
]
items = st.lists(
    st.tuples(st.integers(0, 9), st.floats(0, 1000, allow_nan=False)), min_size=1, max_size=60
).map(lambda rows: [Item(str(i), group, tokens) for i, (group, tokens) in enumerate(rows)])


def loads(assignment: Assignment) -> list[float]:
    return [sum(item.remaining for item in actor) for actor in assignment]


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(items, st.integers(1, 12))
def test_every_sample_is_assigned_exactly_once_and_no_actor_is_empty(
    strategy: Callable[[list[Item], int], Assignment], samples: list[Item], num_actors: int
) -> None:
    actors = strategy(samples, num_actors)
    assert sorted(i.id for actor in actors for i in actor) == sorted(i.id for i in samples)
    assert len(actors) == min(num_actors, len(samples))
    assert all(actors)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_actors_and_no_samples_are_refused(
    strategy: Callable[[list[Item], int], Assignment],
) -> None:
    with pytest.raises(ValueError, match="at least one actor"):
        strategy([Item("a", 0, 1.0)], 0)
    with pytest.raises(ValueError, match="nothing to assign"):
        strategy([], 1)


@given(items, st.integers(1, 12))
def test_random_shares_differ_by_one_at_most_and_follow_the_seed(
    samples: list[Item], num_actors: int
) -> None:
    sizes = [len(actor) for actor in random_equal(samples, num_actors, 3)]
    assert max(sizes) - min(sizes) <= 1
    assert random_equal(samples, num_actors, 3) == random_equal(samples, num_actors, 3)


@given(items, st.integers(1, 12))
def test_balanced_work_is_within_the_bound_of_list_scheduling(
    samples: list[Item], num_actors: int
) -> None:
    longest = max(item.remaining for item in samples)
    for dealt in (balanced(samples, num_actors), finishing_together(samples, num_actors, 0)):
        assert max(loads(dealt)) <= sum(loads(dealt)) / len(dealt) + longest + 1e-6


def test_largest_differencing_beats_largest_first() -> None:
    # The textbook case: largest first makes 17 and 13 of it.
    samples = [Item(str(n), n, float(n)) for n in (8, 7, 6, 5, 4)]
    assert sorted(loads(balanced(samples, 2))) == [14, 16]
    assert sorted(loads(finishing_together(samples, 2, 0.0, 1.0))) == [13, 17]


def test_whoever_has_a_long_sample_gets_less_beside_it() -> None:
    samples = [Item("long", 0, 100.0), *(Item(str(i), 1, 10.0) for i in range(19))]
    together = finishing_together(samples, 2, longest_s=1.0, token_s=1.0)
    assert sorted(map(len, together)) == [1, 19]
    assert sorted(map(len, finishing_together(samples, 2, 0.0, 1.0))) == [6, 14]


@given(items, st.integers(1, 12), st.floats(0, 1), st.floats(0, 1))
def test_sorted_chunks_are_contiguous(
    samples: list[Item], num_actors: int, longest_s: float, token_s: float
) -> None:
    chunks = length_sorted(samples, num_actors, longest_s, token_s)
    for before, after in pairwise(chunks):
        assert min(i.remaining for i in before) >= max(i.remaining for i in after)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=8),
    st.integers(1, 4),
    st.floats(0.1, 2),
    st.floats(0.1, 2),
)
def test_sorted_chunks_are_as_fast_as_any(
    lengths: list[int], num_actors: int, longest_s: float, token_s: float
) -> None:
    samples = [Item(str(i), 0, float(n)) for i, n in enumerate(lengths)]
    ordered = sorted(map(float, lengths), reverse=True)
    number = min(num_actors, len(lengths))

    def best(start: int, left: int) -> float:
        """Slowest chunk of the best cut of ``ordered[start:]`` into ``left`` chunks."""
        times = [
            longest_s * ordered[start] + token_s * sum(ordered[start:end])
            for end in range(start + 1, len(ordered) + 1)
        ]
        if left == 1:
            return times[-1]
        ends = range(start + 1, len(ordered) - left + 2)
        return min(max(times[end - start - 1], best(end, left - 1)) for end in ends)

    slowest = max(
        longest_s * chunk[0].remaining + token_s * sum(i.remaining for i in chunk)
        for chunk in length_sorted(samples, num_actors, longest_s, token_s)
    )
    assert slowest <= best(0, number) * 1.001


@given(items, st.integers(1, 12))
def test_group_affine_is_within_the_bound_of_its_units(
    samples: list[Item], num_actors: int
) -> None:
    affine = loads(group_affine(samples, num_actors))
    groups: dict[int, float] = {}
    for item in samples:
        groups[item.group] = groups.get(item.group, 0) + item.remaining
    assert max(affine) <= sum(affine) / len(affine) + max(groups.values()) + 1e-6


def test_groups_stay_together_when_there_are_enough() -> None:
    samples = [Item(f"{g}/{k}", g, 10.0 + g) for g in range(4) for k in range(8)]
    for actor in group_affine(samples, 2):
        for group in {i.group for i in actor}:
            assert sum(i.group == group for i in actor) == 8


def test_a_single_group_is_split_over_all_actors() -> None:
    samples = [Item(str(k), 0, 5.0) for k in range(8)]
    assert [len(actor) for actor in group_affine(samples, 4)] == [2, 2, 2, 2]


@given(items, st.integers(1, 12))
def test_balanced_work_is_much_the_same_without_largest_differencing(
    samples: list[Item], num_actors: int
) -> None:
    best = loads(balanced(samples, num_actors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "MOST_PARTS", 0)
        quick = loads(balanced(samples, num_actors))
    # Graham's bound for largest first.
    assert max(quick) <= max(best) * (4 / 3 - 1 / (3 * len(quick))) + 1e-6


def test_many_samples_are_balanced_without_largest_differencing() -> None:
    rng = np.random.default_rng(0)
    samples = [Item(str(i), i, float(n)) for i, n in enumerate(rng.lognormal(6, 1, 512))]
    shares = loads(balanced(samples, 8))
    assert len(samples) * 8 > assignment.MOST_PARTS
    assert max(shares) < 1.002 * min(shares)
