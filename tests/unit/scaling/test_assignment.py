import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.assignment import Item, group_affine

items = st.lists(
    st.tuples(st.integers(0, 9), st.floats(0, 1000, allow_nan=False)), min_size=1, max_size=60
).map(lambda rows: [Item(str(i), group, tokens) for i, (group, tokens) in enumerate(rows)])


@given(items, st.integers(1, 12))
def test_every_sample_is_assigned_exactly_once_and_no_actor_is_empty(
    samples: list[Item], num_actors: int
) -> None:
    actors = group_affine(samples, num_actors)
    assert sorted(i.id for actor in actors for i in actor) == sorted(i.id for i in samples)
    assert 1 <= len(actors) <= num_actors
    assert all(actors)


@given(items, st.integers(1, 12))
def test_makespan_is_within_lpt_bound_of_its_units(samples: list[Item], num_actors: int) -> None:
    loads = [sum(i.tokens for i in actor) for actor in group_affine(samples, num_actors)]
    groups: dict[int, float] = {}
    for item in samples:
        groups[item.group] = groups.get(item.group, 0) + item.tokens
    # No list schedule is worse than the mean load plus the largest unit.
    assert max(loads) <= sum(loads) / num_actors + max(groups.values()) + 1e-6


def test_groups_stay_together_when_there_are_enough() -> None:
    samples = [Item(f"{g}/{k}", g, 10.0 + g) for g in range(4) for k in range(8)]
    for actor in group_affine(samples, 2):
        for group in {i.group for i in actor}:
            assert sum(i.group == group for i in actor) == 8


def test_a_single_group_is_split_over_all_actors() -> None:
    samples = [Item(str(k), 0, 5.0) for k in range(8)]
    assert [len(actor) for actor in group_affine(samples, 4)] == [2, 2, 2, 2]


def test_more_actors_than_samples_leaves_none_empty() -> None:
    assert len(group_affine([Item("a", 0, 1.0), Item("b", 1, 1.0)], 8)) == 2


def test_no_actors_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one actor"):
        group_affine([Item("a", 0, 1.0)], 0)
