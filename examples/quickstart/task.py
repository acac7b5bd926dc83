"""The quick-start task: ``a1b7c0?`` -> ``a1=4;b7=0;c0=3``.

A problem is 2 to 10 items, each a letter and a digit; the letters run on in the alphabet. The
answer repeats every item with its digit plus three, modulo ten.

The number of items is geometric, so most answers are short and a few are five times longer: the
long tail that makes rollouts of language models hard to schedule.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

MIN_ITEMS = 2
MAX_ITEMS = 10
STOP_PROBABILITY = 1 / 3

Item = tuple[str, int]


def draw_items(rng: random.Random) -> list[Item]:
    """Items of one problem: letters in alphabetical sequence, any digits; 3.9 items on average."""
    num_items = MIN_ITEMS
    while num_items < MAX_ITEMS and rng.random() > STOP_PROBABILITY:
        num_items += 1
    first = rng.randrange(len(string.ascii_lowercase) - num_items + 1)
    letters = string.ascii_lowercase[first : first + num_items]
    return [(letter, rng.randrange(10)) for letter in letters]


def prompt_of(items: list[Item]) -> str:
    return "".join(f"{letter}{digit}" for letter, digit in items) + "?"


def answer_of(items: list[Item]) -> str:
    return ";".join(f"{letter}{digit}={(digit + 3) % 10}" for letter, digit in items)


def corrupted_answer(items: list[Item], probability: float, rng: random.Random) -> str:
    """The answer of a careless teacher: each result is wrong with ``probability``."""
    parts = []
    for letter, digit in items:
        result = (digit + 3) % 10
        if rng.random() < probability:
            result = (result + rng.randrange(1, 10)) % 10
        parts.append(f"{letter}{digit}={result}")
    return ";".join(parts)


def distinct_problems(rng: random.Random, avoid: set[str]) -> Iterator[list[Item]]:
    """Endless problems, no prompt twice and none of those in ``avoid``."""
    seen = set(avoid)
    while True:
        items = draw_items(rng)
        prompt = prompt_of(items)
        if prompt not in seen:
            seen.add(prompt)
            yield items
