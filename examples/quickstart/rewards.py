"""Rewards of the quick start, with TRL's signature: lists in, one number a completion out."""

from __future__ import annotations

from typing import Any


def exact_match(
    prompts: list[str], completions: list[str], answer: list[str], **kwargs: Any
) -> list[float]:
    """1 where the completion is the answer of the data set's ``answer`` column, else 0."""
    return [
        float(completion.strip() == right)
        for completion, right in zip(completions, answer, strict=True)
    ]


def items_right(
    prompts: list[str], completions: list[str], answer: list[str], **kwargs: Any
) -> list[float]:
    """Share of the answer's items that stand where they should: partial credit, in [0, 1]."""
    rewards = []
    for completion, right in zip(completions, answer, strict=True):
        given, wanted = completion.strip().split(";"), right.split(";")
        hits = sum(a == b for a, b in zip(given, wanted, strict=False))
        rewards.append(hits / max(len(given), len(wanted)))
    return rewards
