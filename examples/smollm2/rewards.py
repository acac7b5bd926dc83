"""The reward of the SmolLM2 example, with TRL's signature; completions are chat messages."""

from __future__ import annotations

import re
from typing import Any

NUMBER = re.compile(r"\d+")


def last_number_right(
    prompts: list[Any], completions: list[list[dict[str, str]]], answer: list[str], **kwargs: Any
) -> list[float]:
    """1 where the last number a response names is the answer, else 0.

    Responses are cut after a few tokens: one that talks around the question has no answer in it.
    """
    rewards = []
    for completion, right in zip(completions, answer, strict=True):
        numbers = NUMBER.findall(completion[-1]["content"])
        rewards.append(float(bool(numbers) and numbers[-1] == right))
    return rewards
