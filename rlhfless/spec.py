"""The job spec: one model for YAML, REST and Python.

Unknown fields are errors. Paths are relative to the job file (``rlhfless.spec_file`` resolves
them). Every field does something; ``docs/job-spec.md`` is generated from this file and the sections
in ``rlhfless/spec_sections/``, which are imported from here. Secrets are masked in every dump
(``rlhfless.spec_secrets``).
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from rlhfless.messages import FunctionName
from rlhfless.spec_sections.algorithm import GROUP_WISE, AlgorithmSpec, KlSpec
from rlhfless.spec_sections.base import NonNegative, Section
from rlhfless.spec_sections.functions import (
    FunctionSpec,
    LoraSpec,
    ReferenceSpec,
    RolloutSpec,
    TrainingSpec,
)
from rlhfless.spec_sections.inputs import DatasetSpec, EvaluationSpec, ModelSpec
from rlhfless.spec_sections.reporting import IntegrationSpec, JobEvent, Tracker, WebhookSpec
from rlhfless.spec_sections.rewards import RewardSpec, reward_name
from rlhfless.spec_sections.scheduling import Assignment, BudgetSpec, ObjectiveSpec, SchedulingSpec

__all__ = [
    "GROUP_WISE",
    "AlgorithmSpec",
    "Assignment",
    "BudgetSpec",
    "DatasetSpec",
    "EvaluationSpec",
    "FunctionSpec",
    "IntegrationSpec",
    "JobEvent",
    "JobSpec",
    "KlSpec",
    "LoraSpec",
    "ModelSpec",
    "ObjectiveSpec",
    "ReferenceSpec",
    "RewardSpec",
    "RolloutSpec",
    "SchedulingSpec",
    "Tracker",
    "TrainingSpec",
    "WebhookSpec",
    "reward_name",
]


class JobSpec(Section):
    """An RLHF job."""

    name: str = Field(default="job", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    seed: NonNegative = 0
    model: ModelSpec
    dataset: DatasetSpec
    evaluation: EvaluationSpec | None = None
    algorithm: AlgorithmSpec = AlgorithmSpec()
    rewards: list[RewardSpec] = Field(min_length=1)
    rollout: RolloutSpec = RolloutSpec()
    reward: FunctionSpec = FunctionSpec()
    """Resources of the reward function."""
    reference: ReferenceSpec = ReferenceSpec()
    training: TrainingSpec = TrainingSpec()
    scheduling: SchedulingSpec = SchedulingSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: BudgetSpec = BudgetSpec()
    integrations: list[IntegrationSpec] = []
    """Experiment trackers."""
    webhooks: list[WebhookSpec] = []
    """URLs that hear of the job's states."""
    metadata: dict[str, str] = {}
    """Labels of your own."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        samples = self.training.prompts_per_step * self.algorithm.group_size
        if samples % self.training.minibatches:
            raise ValueError(
                f"training.minibatches must divide the {samples} samples of a step "
                "(prompts_per_step x group_size)"
            )
        if self.training.overlap:
            self._check_overlap()
        names = [reward_name(r) for r in self.rewards]
        if len(set(names)) != len(names):
            raise ValueError(f"rewards need distinct names, got {', '.join(names)}")
        if self.budget.max_usd is not None:
            for function in self.functions():
                if self.function(function).price_usd_per_hour is None:
                    raise ValueError(
                        f"budget.max_usd needs {function}.price_usd_per_hour: its price is unknown"
                    )
        return self

    def _check_overlap(self) -> None:
        """Refuse an overlap in which nothing would be computed (``docs/algorithms.md``)."""
        if not self.scheduling.stream_scoring:
            raise ValueError(
                "training.overlap needs scheduling.stream_scoring: "
                "without it nothing is scored before the rollout ends"
            )
        if self.training.idle_timeout_s == 0:
            raise ValueError(
                "training.overlap needs training.idle_timeout_s above 0: an instance that stops "
                "after each call loses what it has computed"
            )
        dropout = self.training.trainable == "lora" and self.training.lora.dropout > 0
        whole = self.algorithm.name == "reinforce_pp" or (dropout and self.algorithm.name != "ppo")
        kl = self.algorithm.kl
        in_reward = kl.coefficient > 0 and kl.placement == "reward"
        if whole and self.training.minibatches == 1 and not in_reward:
            why = "random dropout" if dropout else "advantages over the whole batch"
            raise ValueError(
                f"training.overlap: with {why} and one minibatch nothing can be computed before "
                "the batch is complete"
            )

    def needs_reference(self) -> bool:
        return self.algorithm.kl.coefficient > 0

    def functions(self) -> tuple[FunctionName, ...]:
        """The functions this job uses."""
        if self.needs_reference():
            return ("rollout", "reward", "reference", "training")
        return ("rollout", "reward", "training")

    def function(self, name: FunctionName) -> FunctionSpec:
        section: Any = getattr(self, name)
        assert isinstance(section, FunctionSpec)
        return section
