"""The seam between the handler and the kinds of reward, and how errors name a sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from functions.reward.process import Cancelled
from functions.reward.wire import NO_SAMPLE, Score, pack
from rlhfless.errors import UserError
from rlhfless.messages import Prompt, RewardFunction, RewardRequest

_EXCERPT = 80


class Scorer(Protocol):
    """One reward function, ready to score. Used by one thread or many at once."""

    def score(self, samples: Samples, cancelled: Cancelled) -> list[float | None]:
        """One finite number or None per sample.

        Raises ``UserError`` naming function and sample; ``TransientError`` where another attempt
        may help; ``CallCancelled`` soon after ``cancelled()`` has become true.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Samples:
    """The samples of a call, in the forms scorers need."""

    request: RewardRequest

    def __len__(self) -> int:
        return len(self.request.sample_ids)

    @cached_property
    def packed(self) -> bytes:
        """The call as a message to a worker; made once for all Python functions of a request."""
        r = self.request
        return pack(
            Score(
                prompts=r.prompts,
                completions=r.completions,
                completion_ids=r.completion_ids,
                columns=r.columns,
                step=r.call.step,
            )
        )

    def describe(self, index: int) -> str:
        """E.g. ``sample 's7' (8 of 64, completion 'a1=4')``."""
        text = _text(self.request.completions[index])
        excerpt = text if len(text) <= _EXCERPT else text[:_EXCERPT] + "..."
        name = self.request.sample_ids[index]
        return f"sample {name!r} ({index + 1} of {len(self)}, completion {excerpt!r})"


def fault(
    function: RewardFunction,
    samples: Samples,
    what: str,
    *,
    sample: int = NO_SAMPLE,
    relation: str = "on",
    hint: str | None = None,
    trace: str | None = None,
) -> UserError:
    """The user's error "reward 'x' <what> <relation> sample ..."."""
    at = f" {relation} {samples.describe(sample)}" if sample != NO_SAMPLE else ""
    return UserError(f"reward {function.name!r} {what}{at}", hint=hint, trace=trace)


def _text(value: Prompt) -> str:
    if isinstance(value, str):
        return value
    last: Any = value[-1].get("content") if value else ""
    return last if isinstance(last, str) else str(last)
