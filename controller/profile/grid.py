"""Which calls tell the coefficients of a cost apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.spec import JobSpec

NEW_TOKENS = 32
"""Iterations of a decode call at most: enough to see past its first ones."""
LONG_ROWS = 16
"""Rows at most where prompts are long: their prefill is not what such a call is for."""
MAX_ROWS = 256
"""Rows together at most where the job does not bound them."""


@dataclass(frozen=True)
class RolloutPoint:
    """A rollout call of ``rows`` samples, ``group`` to a prompt of ``prompt_tokens``. The samples
    end evenly from half of ``new_tokens`` on, so that rows leave the batch as they do in a run."""

    rows: int
    group: int
    prompt_tokens: int
    new_tokens: int
    usual: bool = True
    """Whether prompts are as long as the job's."""

    @property
    def prompts(self) -> int:
        return -(-self.rows // self.group)

    def limit(self, row: int) -> int:
        """Tokens of a row."""
        half = (self.new_tokens + 1) // 2
        return half + (self.new_tokens - half) * (row + 1) // self.rows


def rollout_grid(spec: JobSpec, prompt_tokens: int, longest: int) -> list[RolloutPoint]:
    """Calls that differ in rows, and in context: at the length of a usual prompt
    (``prompt_tokens``), and where the longest response to the ``longest`` prompt would end."""
    group = spec.algorithm.group_size
    new = min(NEW_TOKENS, spec.rollout.max_tokens)
    most = min(spec.rollout.max_batch or MAX_ROWS, spec.training.prompts_per_step * group)
    sizes = sorted({min(rows, most) for rows in (1, 4, 16, 64, most)})
    short = [RolloutPoint(rows, min(group, rows), prompt_tokens, new) for rows in sizes]
    far = longest + spec.rollout.max_tokens - new
    if far < 2 * prompt_tokens:
        return short
    some = [rows for rows in sizes if rows <= LONG_ROWS]
    return short + [RolloutPoint(rows, min(group, rows), far, new, usual=False) for rows in some]


def parts(count: int) -> list[int]:
    """Sizes of calls that work on some of ``count`` things."""
    return sorted({max(1, count // 8), max(1, count // 2), count})
