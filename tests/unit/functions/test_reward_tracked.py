"""The lists that note which sample is looked at."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from functions.reward.tracked import (
    SLOTS,
    TrackedList,
    clear,
    last_sample,
    sample_in_traceback,
)


def _notes() -> memoryview:
    notes = memoryview(bytearray(8 * len(SLOTS))).cast("q")
    clear(notes)
    return notes


def test_iteration_and_indexing_note_the_index() -> None:
    notes = _notes()
    items = TrackedList(["a", "b", "c"], notes, 0)
    assert last_sample(notes, 3) == -1
    for expected, item in enumerate(items):
        assert item == "abc"[expected]
        assert last_sample(notes, 3) == expected
    assert last_sample(notes, 3) == -1, "read to the end: no sample in particular"
    assert items[-1] == "c"
    assert last_sample(notes, 3) == 2
    assert items[0] == "a"
    assert last_sample(notes, 3) == 0


@pytest.mark.parametrize(
    "read", [list, tuple, sorted, "".join, lambda x: [*x], lambda x: dict(zip(x, x, strict=True))]
)
def test_copying_everything_accuses_nobody(read: object) -> None:
    notes = _notes()
    assert callable(read)
    read(TrackedList(["a", "b", "c"], notes, 0))
    assert last_sample(notes, 3) == -1


def test_completions_come_before_columns() -> None:
    notes = _notes()
    completions = TrackedList(["x", "y", "z"], notes, 0)
    constants = TrackedList([1, 1, 1], notes, 3)
    assert completions[2] == "z"
    assert constants[0] == 1
    assert last_sample(notes, 3) == 2


def test_copies_are_plain_lists() -> None:
    items = TrackedList([["a"], ["b"]], _notes(), 0)
    for other in (
        items[:],
        copy.copy(items),
        copy.deepcopy(items),
        pickle.loads(pickle.dumps(items)),
    ):
        assert type(other) is list
        assert other == [["a"], ["b"]] == items
    assert json.dumps(items) == '[["a"], ["b"]]'
    assert isinstance(items, list)
    assert len(items) == 2


def test_a_traceback_names_the_sample_an_inner_frame_holds() -> None:
    completions = ["first one", "second one", "shared"]
    columns = [["u1", "v1"], "shared", ["u2"]]
    columns[1] = completions[2]  # the same object belongs to samples 1 and 2

    def judge(text: str) -> None:
        raise ValueError(len(text))

    def score(text: str) -> None:
        last = completions[0]  # a stale variable of the outermost frame proves nothing
        assert last
        judge(text)

    for index, expected in ((1, 1), (2, -1)):
        try:
            score(completions[index])
        except ValueError as error:
            assert error.__traceback__ is not None
            outermost = error.__traceback__.tb_next
            assert sample_in_traceback(outermost, [completions, columns]) == expected
    assert sample_in_traceback(None, [completions]) == -1
