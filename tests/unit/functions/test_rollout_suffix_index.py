"""The index of what has been generated."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.rollout.suffix_index import (
    CONTEXT,
    NOTHING,
    ORDERS,
    SEGMENT,
    Document,
    SuffixIndex,
    Tokens,
)

MEMORY = 1 << 20


def array(tokens: list[int]) -> Tokens:
    return np.array(tokens, np.int32)


def context(tokens: list[int]) -> Tokens:
    padded = [NOTHING] * CONTEXT + tokens
    return array(padded[-CONTEXT:])


def continuation(index: SuffixIndex, tokens: list[int], count: int = 4) -> list[int]:
    found = index.find(context(tokens)[None])
    return index.read(int(found.position[0]), min(count, int(found.available[0])))


def test_what_followed_before_is_found() -> None:
    index = SuffixIndex(MEMORY)
    index.append([Document()], [array(list(range(100, 200)))])
    assert continuation(index, [1, 2, 150, 151, 152, 153]) == [154, 155, 156, 157]
    assert continuation(index, [1, 2, 151, 152, 153]) == []  # shorter than the shortest order
    assert continuation(index, [196, 197, 198, 199]) == []  # nothing has followed yet


def test_the_longest_match_wins_then_the_newest() -> None:
    index = SuffixIndex(MEMORY)
    for head, after in ((1, 70), (2, 80), (2, 90)):
        text = [head, *range(10, 30), after]
        index.append([Document()], [array(text)])
    assert continuation(index, [1, *range(10, 30)]) == [70]
    assert continuation(index, [2, *range(10, 30)]) == [90]
    assert continuation(index, [3, *range(10, 30)]) == [90]


def test_a_growing_document_is_found_as_it_stands() -> None:
    index = SuffixIndex(MEMORY)
    one, other = Document(), Document()
    index.append([one, other], [array([5, 6, 7, 8]), array([1])])
    assert continuation(index, [5, 6, 7, 8]) == []
    index.append([one], [array([9, 10])])
    assert continuation(index, [5, 6, 7, 8]) == [9, 10]


def test_documents_longer_than_a_segment() -> None:
    index = SuffixIndex(MEMORY)
    document, text = Document(), list(range(3 * SEGMENT))
    index.append([document], [array(text)])
    for end in (SEGMENT + 1, SEGMENT + 10, 2 * SEGMENT + 5):
        assert continuation(index, text[:end], 3) == text[end : end + 3]
    # The match reaches back over the seam, but no draft reaches over it.
    assert continuation(index, text[: SEGMENT - 2], 4) == text[SEGMENT - 2 : SEGMENT]


def test_prompts_that_end_alike_are_told_apart() -> None:
    index = SuffixIndex(MEMORY)
    template = list(range(900, 930))
    for question in range(40):
        index.append([Document()], [array([question, *template, 1000 + question])])
    assert continuation(index, [17, *template]) == [1017]


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    index = SuffixIndex(MEMORY)
    assert index.num_bytes <= 1.1 * MEMORY
    first, document = list(range(50)), Document()
    index.append([document], [array(first)])
    for number in range(400):
        index.append([Document()], [array([10_000 + 100 * number + i for i in range(50)])])
    assert continuation(index, first[:20]) == []
    assert continuation(index, [49_900 + i for i in range(20)], 2) == [49_920, 49_921]
    index.append([document], [array([50, 51, 52, 53, 54, 55])])  # its segment is another's now
    assert continuation(index, [50, 51, 52, 53]) == [54, 55]


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=8), st.data())
def test_whatever_is_found_has_stood_there(texts: list[list[int]], data: st.DataObject) -> None:
    index = SuffixIndex(1 << 14)  # 7 segments: some are written over
    for text in texts:
        index.append([Document()], [array(text)])
    asked = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=30))
    found = index.find(context(asked)[None])
    matched, available = int(found.matched[0]), int(found.available[0])
    if matched == 0:
        assert available == 0
        return
    assert matched >= ORDERS[-1]
    wanted = [*context(asked)[-matched:], *index.read(int(found.position[0]), available)]
    padded = [[NOTHING] * CONTEXT + text for text in texts]
    assert any(text[i : i + len(wanted)] == wanted for text in padded for i in range(len(text)))
