"""The plan of a step: which prompts, which samples, how many actors, who generates what.

Pure: the same job, step and policy state give the same plan, so a controller that takes a step
over plans the very samples its predecessor did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controller.collector import FinishedSample, Sample
from controller.dataset import Position
from controller.job import Job, Prompt
from controller.rollout_stats import RolloutStats
from rlhfless.seeds import derive
from rlhfless.spec import JobSpec
from scaling import decode_cost, lengths
from scaling.actors import ActorDecision, ActorSituation, choose_actors
from scaling.assignment import Item
from scaling.decode_cost import DecodeCall
from scaling.lengths import LengthState


class PolicyState(msgspec.Struct, frozen=True):
    """What the policies have learned up to a step."""

    lengths: LengthState = LengthState()
    decode_calls: list[DecodeCall] = []
    cold_start_s: float = 1.0


_decoder = msgspec.msgpack.Decoder(PolicyState)


def encode_state(state: PolicyState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_state(data: bytes | None) -> PolicyState:
    return PolicyState() if data is None else _decoder.decode(data)


@dataclass(frozen=True)
class StepPlan:
    """``prompts[g]`` is the prompt of group g; ``position`` is where the next step's order begins.

    ``prompt_of`` maps sample ids to prompts.
    """

    step: int
    prompts: tuple[Prompt, ...]
    samples: tuple[Sample, ...]
    position: Position

    @property
    def prompt_of(self) -> dict[str, Prompt]:
        return {sample.id: self.prompts[sample.group] for sample in self.samples}


def plan_step(job: Job, step: int, position: Position) -> StepPlan:
    """Pick the step's prompts in the data's order and name its samples."""
    spec = job.spec
    rows, after = job.data.order.take(position, spec.training.prompts_per_step)
    prompts = tuple(job.data.prompts[row] for row in rows)
    return StepPlan(
        step=step,
        prompts=prompts,
        samples=tuple(
            Sample(
                id=f"{step}/{group}/{k}",
                group=group,
                prompt=prompt.tokens,
                seed=derive(spec.seed, "step", step, "group", group, "sample", k),
                max_tokens=spec.rollout.max_tokens,
            )
            for group, prompt in enumerate(prompts)
            for k in range(spec.algorithm.group_size)
        ),
        position=after,
    )


def assign(
    spec: JobSpec, samples: Sequence[Sample], keys: Sequence[str], state: PolicyState, warm: int
) -> ActorDecision:
    """Choose the actors for ``samples``; ``keys[g]`` names the prompt of group g."""
    limit = spec.rollout.max_tokens
    items = [
        Item(s.id, s.group, lengths.predict(state.lengths, keys[s.group], limit)) for s in samples
    ]
    return choose_actors(
        items,
        ActorSituation(
            max_actors=spec.rollout.max_instances,
            num_warm=warm,
            cold_start_s=state.cold_start_s,
            cost=decode_cost.fit(state.decode_calls),
            tail=lengths.tail_factor(state.lengths, len(items)),
            max_tokens=limit,
            time_weight=spec.objective.time_weight,
        ),
    )


def learn(
    spec: JobSpec,
    plan: StepPlan,
    finished: Sequence[FinishedSample],
    stats: RolloutStats,
    state: PolicyState,
) -> PolicyState:
    """The policies' state after a step."""
    prompt_of = plan.prompt_of
    observed: dict[str, list[int]] = {}
    for sample in finished:
        observed.setdefault(prompt_of[sample.id].key, []).append(len(sample.tokens))
    return PolicyState(
        lengths=lengths.update(state.lengths, observed, spec.rollout.max_tokens),
        decode_calls=decode_cost.remember(
            state.decode_calls,
            [
                DecodeCall(iterations=d.iterations, tokens=d.generated_tokens, decode_s=d.decode_s)
                for d in stats.calls
            ],
        ),
        cold_start_s=state.cold_start_s,
    )


def describe(decision: ActorDecision) -> dict[str, Any]:
    """The decision and its alternatives, for the journal."""
    return {
        "actors": decision.chosen.num_actors,
        "reason": decision.reason,
        "alternatives": [
            {
                "actors": plan.num_actors,
                "seconds": plan.seconds,
                "actor_seconds": plan.actor_seconds,
                "score": plan.score,
            }
            for plan in decision.alternatives
        ],
    }
