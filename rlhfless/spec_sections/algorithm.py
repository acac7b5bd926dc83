"""What is optimised."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhfless.spec_sections.base import NonNegative, Positive, Section

GROUP_WISE = ("grpo", "dr_grpo", "rloo")
"""Algorithms whose advantages compare the responses to one prompt and no others."""


class KlSpec(Section):
    """Penalty that keeps the policy near the reference (the initial model)."""

    coefficient: float = Field(default=0.0, ge=0)
    """0: no reference model is run at all."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Form of the loss term. In the reward it is always k1: only it has the right gradient."""
    placement: Literal["loss", "reward"] = "loss"


class AlgorithmSpec(Section):
    """What is optimised. Choosing ``name`` sets the advantage; other fields refine it."""

    name: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "ppo"] = "grpo"
    group_size: Positive = 8
    """Responses sampled for each prompt."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip of the ratio; above ``clip_low`` it is DAPO's clip-higher."""
    dual_clip: float | None = Field(default=None, gt=1)
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] | None = None
    """Default: ``sequence_sum`` for dr_grpo, else ``token_mean`` over the whole minibatch."""
    kl: KlSpec = KlSpec()
    entropy_coefficient: float = 0.0
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    value_coefficient: float = Field(default=0.5, gt=0)
    value_clip: float | None = Field(default=0.2, gt=0)
    value_learning_rate: float | None = Field(default=None, gt=0)
    """PPO's value model; default: ``training.learning_rate``."""
    value_warmup_steps: NonNegative = 0
    """PPO: so many first steps train the value model alone."""

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.name in GROUP_WISE and self.group_size < 2:
            raise ValueError(
                f"{self.name} compares responses of one prompt: group_size must be >= 2"
            )
        if self.name != "ppo" and self.gamma != 1.0:
            raise ValueError("gamma below 1 needs per-token advantages: use ppo")
        return self
