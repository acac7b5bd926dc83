"""What a reward function may return, and how scores become totals. Pure; imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from functions.reward.wire import NO_SAMPLE

_TEXT = (str, bytes, bytearray)


class BadScore(Exception):
    """A result that is no list of scores; the message completes "returned ...".

    ``sample`` is the index of the entry at fault or ``NO_SAMPLE``.
    """

    def __init__(self, message: str, sample: int = NO_SAMPLE) -> None:
        super().__init__(message)
        self.sample = sample


def to_scores(result: Any, num_samples: int) -> list[float | None]:
    """Check and convert a result: one finite number or None per sample.

    Lists and tuples pass, and what has ``tolist`` (NumPy arrays, tensors). Numbers are whatever
    converts by ``float()`` except text; ``True`` is 1. Raises ``BadScore``.
    """
    if not isinstance(result, list | tuple) and hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise BadScore(f"{_kind(result)}, not a list with one number (or None) per sample")
    if len(result) != num_samples:
        raise BadScore(f"{len(result)} scores for {num_samples} samples")
    return [_to_score(value, index) for index, value in enumerate(result)]


def _to_score(value: Any, index: int) -> float | None:
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, _TEXT) else float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        raise BadScore(f"{_kind(value)}, not a number,", index) from None
    if isinstance(value, _TEXT):
        raise BadScore(f"{_kind(value)}, not a number,", index)
    if not math.isfinite(number):
        raise BadScore(f"{number}", index)
    return number


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    return (
        f"a {type(value).__name__} ({str(value)[:60]!r})"
        if isinstance(value, _TEXT)
        else (f"a {type(value).__name__}")
    )


def totals(
    scores: Sequence[Sequence[float | None]], weights: Sequence[float], num_samples: int
) -> list[float | None]:
    """Weighted sum per sample over the functions that apply; None where none does.

    ``scores[f][i]`` as in ``RewardDone``. The sum is not divided by the weights (as in TRL).
    """
    return [_total([row[i] for row in scores], weights) for i in range(num_samples)]


def _total(column: Sequence[float | None], weights: Sequence[float]) -> float | None:
    applying = [w * s for s, w in zip(column, weights, strict=True) if s is not None]
    return sum(applying) if applying else None
