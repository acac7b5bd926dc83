"""What says how good a response is."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rlhfless.spec_sections.base import Positive, Section


class RewardSpec(Section):
    """One reward; exactly one of ``python``, ``model``, ``http``."""

    name: str | None = None
    """Default: the Python function's name, the model's folder name, or the URL's host."""
    python: str | None = None
    """``file.py:function`` or ``package.module:function``, with TRL's signature
    ``f(prompts, completions, **columns) -> list[float | None]``; sync or async."""
    model: str | None = None
    """A sequence-classification model (folder or Hub name); its first logit is the reward."""
    http: str | None = None
    """A URL that takes ``{prompts, completions, columns}`` and answers ``{rewards: [...]}``."""
    weight: float = 1.0
    timeout_s: float = Field(default=30.0, gt=0)
    """A call that takes longer fails, naming the function and the sample."""
    memory_mb: Positive | None = None
    """Address-space limit of the worker that runs a Python reward."""
    network: bool = False
    """Let a Python reward reach the network."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(v is not None for v in (self.python, self.model, self.http)) != 1:
            raise ValueError("give exactly one of python, model, http")
        if self.python is not None and ":" not in self.python:
            raise ValueError("python must read file.py:function or module:function")
        return self


def reward_name(reward: RewardSpec) -> str:
    """The name under which a reward's mean is reported."""
    if reward.name is not None:
        return reward.name
    if reward.python is not None:
        return reward.python.rsplit(":", 1)[1]
    if reward.model is not None:
        return reward.model.rstrip("/").rsplit("/", 1)[-1]
    assert reward.http is not None
    return reward.http.split("//", 1)[-1].split("/", 1)[0]
