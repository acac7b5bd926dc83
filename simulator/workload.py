"""How long responses are: per-prompt distributions, and what they depend on.

The logarithm of a response's length is the sum of the model's (which grows while it learns), its
prompt's (shared by all samples of the group, much the same in the next epoch) and its own. A share
of the responses runs on: its length is multiplied by a Pareto factor. Lengths end at a cap, as
generation does. Everything is a function of seed, prompt, epoch and sample, so that two simulations
of different strategies generate the same responses.

Worked number: median 500, ``between`` 0.5, ``within`` 0.4: samples of a prompt correlate by
0.25 / (0.25 + 0.16) = 0.61, and 75 % of all are within 500 · exp(0.674 · 0.64) = 770 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhfless.errors import UserError
from simulator.random_numbers import Array, hashed, normal, uniform

Lengths = NDArray[np.int64]
PromptKeys = NDArray[np.uint64]

_PROMPT, _SAMPLE = 1, 2
"""Keys that keep the random numbers of prompts and of samples apart."""


class Workload(Protocol):
    """Where lengths come from: a model, or a trace."""

    def lengths(self, prompts: PromptKeys, group: int, step: int, epoch: int) -> Lengths:
        """``[prompts, group]`` tokens of the responses to prompts (``key_of`` their text) in a step
        (counted from 0) of an epoch (from 0)."""
        ...


@dataclass(frozen=True)
class LengthModel:
    """A distribution of lengths. Deviations are of the natural logarithm."""

    median: float
    """Tokens at the first step."""
    cap: int
    """Longest response; a longer one is cut there."""
    between: float = 0.4
    """Deviation between prompts."""
    within: float = 0.4
    """Deviation between samples of a prompt."""
    tail_share: float = 0.0
    """Share of responses that run on."""
    tail_index: float = 1.0
    """Index of the Pareto distribution of the factor by which they do; smaller: longer."""
    persistence: float = 0.9
    """Correlation of a prompt's part between an epoch and the next."""
    growth: float = 0.0
    """Added to the logarithm at every step."""
    growth_steps: int = 0
    """Steps after which it has grown enough."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, wrong in (
            ("median", not self.median > 0),
            ("cap", self.cap < 1),
            ("between", not self.between >= 0),
            ("within", not self.within >= 0),
            ("tail_share", not 0 <= self.tail_share < 1),
            ("tail_index", not self.tail_index > 0),
            ("persistence", not 0 <= self.persistence <= 1),
            ("growth_steps", self.growth_steps < 0),
        ):
            if wrong:
                value = getattr(self, name)
                raise UserError(
                    f"workload.lengths.{name} cannot be {value}", param=f"workload.lengths.{name}"
                )

    def lengths(self, prompts: PromptKeys, group: int, step: int, epoch: int) -> Lengths:
        samples = np.arange(group, dtype=np.uint64)[None, :]
        state = hashed(self.seed, _SAMPLE, prompts[:, None], epoch, samples)
        grown = self.growth * min(step, self.growth_steps)
        body = self.between * self.prompt_part(prompts, epoch)[:, None]
        logs = np.log(self.median) + grown + body + self.within * normal(state, 0)
        if self.tail_share:
            # Below the share, the quotient is uniform again: one number decides both.
            quotient = uniform(state, 2) / self.tail_share
            logs = logs - np.log(np.minimum(quotient, 1.0)) / self.tail_index
        # Logarithms are capped first: a tail without bound would overflow.
        tokens = np.ceil(np.exp(np.minimum(logs, np.log(self.cap))) - 1e-9)
        capped: Lengths = np.clip(tokens, 1, self.cap).astype(np.int64)
        return capped

    def prompt_part(self, prompts: PromptKeys, epoch: int) -> Array:
        """``[prompts]`` standard normal numbers that follow an autoregression over epochs."""
        fresh = np.sqrt(1 - self.persistence**2)
        part = normal(hashed(self.seed, _PROMPT, prompts, 0), 0)
        for each in range(1, epoch + 1):
            news = normal(hashed(self.seed, _PROMPT, prompts, each), 0)
            part = self.persistence * part + fresh * news
        return part

    def capped(self, max_tokens: int) -> LengthModel:
        """Cut at ``max_tokens`` if that is less."""
        return replace(self, cap=min(self.cap, max_tokens))

    def within_context(self, prompt_tokens: int, max_context: int) -> LengthModel:
        """Raises ``UserError`` where prompt and longest response exceed the model's context (0:
        unknown), with the cap that would do."""
        room = max_context - prompt_tokens
        if max_context and self.cap > room:
            advice = f"at most {room} would do" if room > 0 else "the prompt alone fills it"
            raise UserError(
                f"workload.lengths.cap: {self.cap} tokens after a prompt of {prompt_tokens} exceed "
                f"the model's context of {max_context}; {advice}",
                param="workload.lengths.cap",
            )
        return self


LONG_TAILED_MATH = LengthModel(
    median=560,
    cap=16_384,
    between=0.5,
    within=0.5,
    tail_share=0.03,
    tail_index=0.9,
)
"""Shaped after RollPacker (arXiv 2509.21009): three quarters within 755 to 1,100 tokens, the
longest of a step 25 to 32 times the median. How the spread divides into prompts and samples is
assumed."""
