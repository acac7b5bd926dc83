"""Keys: equal for the same model, tokens and cuts, different for anything else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_cache.keys import KvIdentity, object_name, segment_keys

MODEL = KvIdentity(path="models/a", job="job", version=3, dtype="float32")
TEXT = st.text(max_size=6)
IDENTITIES = st.builds(
    KvIdentity,
    path=TEXT,
    job=TEXT,
    version=st.integers(0, 2**40),
    dtype=TEXT,
    adapter=TEXT,
    format=st.integers(0, 3),
)


@st.composite
def cut_prompts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    tokens = draw(st.lists(st.integers(0, 2**31), min_size=2, max_size=24))
    cuts = draw(st.sets(st.integers(1, len(tokens)), min_size=1))
    return tokens, sorted(cuts)


def prefixes(tokens: list[int], cuts: list[int]) -> list[tuple[tuple[int, ...], ...]]:
    """What each segment's key stands for: the segments up to it."""
    segments = [tuple(tokens[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    return [tuple(segments[: n + 1]) for n in range(len(segments))]


@given(IDENTITIES, IDENTITIES, cut_prompts(), cut_prompts())
def test_keys_are_equal_exactly_for_equal_models_and_prefixes(
    one: KvIdentity,
    other: KvIdentity,
    first: tuple[list[int], list[int]],
    second: tuple[list[int], list[int]],
) -> None:
    keys = {
        (a, b): segment_keys(model, *prompt)
        for a, model in enumerate((one, other))
        for b, prompt in enumerate((first, second))
    }
    meaning = {
        (a, b): [(model, prefix) for prefix in prefixes(*prompt)]
        for a, model in enumerate((one, other))
        for b, prompt in enumerate((first, second))
    }
    for place, found in keys.items():
        for elsewhere, others in keys.items():
            for key, what in zip(found, meaning[place], strict=True):
                for their_key, theirs in zip(others, meaning[elsewhere], strict=True):
                    assert (key == their_key) == (what == theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"path": "models/b"},
        {"job": "other"},
        {"version": 4},
        {"dtype": "bfloat16"},
        {"adapter": "lora"},
        {"format": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_part_of_the_identity_changes_every_key(change: dict[str, object]) -> None:
    other = msgspec.structs.replace(MODEL, **change)
    tokens = list(range(40))
    assert not {*segment_keys(MODEL, tokens, [16, 39])} & {*segment_keys(other, tokens, [16, 39])}


def test_tokens_after_a_cut_do_not_matter_to_it() -> None:
    assert (
        segment_keys(MODEL, [1, 2, 3, 4], [2]) == segment_keys(MODEL, [1, 2, 9, 9, 9], [2, 4])[:1]
    )


def test_keys_stay_what_they_are() -> None:
    """Stored entries of a running job must be found by the next release, or FORMAT be raised."""
    assert segment_keys(MODEL, [5, 6, 7], [2]) == ("55c41838ea97e6bdc8615ff42b1307f8c0556bd8",)
    assert object_name(MODEL, "ab") == "kv/job/v000003/ab"


@pytest.mark.parametrize("cuts", [[0], [3, 2], [2, 2], [5]])
def test_cuts_that_are_none(cuts: list[int]) -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        segment_keys(MODEL, [1, 2, 3, 4], cuts)
