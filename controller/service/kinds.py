"""What functions of different jobs must have in common to be one another's."""

from __future__ import annotations

from collections.abc import Hashable

from rlhfless.messages import FunctionName
from rlhfless.spec import JobSpec


def kinds(tenant: str, spec: JobSpec) -> dict[FunctionName, Hashable]:
    """What an instance must have in common with another job's to change hands: whose it is, what it
    has loaded, how it computes."""
    model = (spec.model.path, spec.model.dtype, spec.model.chat_template)
    rewards = tuple(reward.model_dump_json() for reward in spec.rewards)
    return {
        function: (tenant, rewards if function == "reward" else model)
        for function in spec.functions()
        if function != "training"  # its optimizer's state is of one job
    }


def used_together(spec: JobSpec) -> frozenset[FunctionName]:
    """Functions that may serve jobs of one kind at the same time: their models never change. Python
    rewards are a job's own: what they print belongs in its log."""
    own: set[FunctionName] = {"rollout", "training"}
    if any(reward.python is not None for reward in spec.rewards):
        own.add("reward")
    return frozenset(spec.functions()) - own
