"""The radix tree: what prompts share, by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_cache.tree import build_tree

# Few tokens and short prompts: prefixes are shared often.
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), max_size=8)


def units(tokens: list[int], block: int) -> list[tuple[int, ...]]:
    body = tokens[:-1]
    return [tuple(body[i : i + block]) for i in range(0, len(body), block)]


@given(PROMPTS, st.integers(1, 5))
def test_nodes_are_what_prompts_have_in_common(prompts: list[list[int]], block: int) -> None:
    tree = build_tree(prompts, block)
    for index, node in enumerate(tree.nodes):
        assert node.parent < index
        assert node.start == (tree.nodes[node.parent].end if node.parent >= 0 else 0)
        assert node.start < node.end
        assert node.start % block == 0
        first = prompts[node.prompts[0]]
        sharing = tuple(
            number
            for number, tokens in enumerate(prompts)
            if units(tokens, block)[: -(-node.end // block)]
            == units(first, block)[: -(-node.end // block)]
        )
        assert node.prompts == sharing
    for number, tokens in enumerate(prompts):
        cuts = tree.cuts(number)
        assert cuts == sorted(set(cuts))
        assert cuts[-1:] == ([len(tokens) - 1] if len(tokens) > 1 else [])
        assert [number in tree.nodes[n].prompts for n in tree.path(number)] == [True] * len(cuts)


@given(PROMPTS, st.integers(1, 5))
def test_prompts_branch_after_their_longest_common_blocks(
    prompts: list[list[int]], block: int
) -> None:
    tree = build_tree(prompts, block)
    for a, one in enumerate(prompts):
        for b, other in enumerate(prompts):
            common = 0
            for x, y in zip(units(one, block), units(other, block), strict=False):
                if x != y:
                    break
                common += len(x)
            shared = set(tree.path(a)) & set(tree.path(b))
            assert max((tree.nodes[n].end for n in shared), default=0) == common
    # No node but where prompts part or end.
    assert len(tree.nodes) <= 2 * len({tuple(tokens) for tokens in prompts})


def test_a_template_and_its_questions() -> None:
    template = list(range(100, 140))
    prompts = [
        [*template, 1, 2, 3],
        [*template, 4, 5, 6],
        [*template, 1, 2, 3],
        [*template, 1, 2, 9],
    ]
    tree = build_tree(prompts, 16)
    assert [tree.cuts(p) for p in range(4)] == [[32, 42]] * 4
    assert tree.nodes[tree.last[0]].prompts == (0, 2, 3)
    assert tree.nodes[0].prompts == (0, 1, 2, 3)


def test_no_blocks() -> None:
    with pytest.raises(ValueError, match="block_tokens"):
        build_tree([[1, 2]], 0)
