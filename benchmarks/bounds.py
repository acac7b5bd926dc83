"""What a step could come to if all lengths, and all times, were known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.live_job import Step
from benchmarks.paced.pace import KV_LAYOUT, Pace
from scaling.actors import choose
from scaling.cost_model import PRIORS, CostModel
from scaling.forecasts import certain
from scaling.items import Item
from scaling.plans import Situation
from scaling.work import Capacity, Prefixes


@dataclass(frozen=True)
class Bounds:
    """``step_s``: no plan makes the step in less: the longest response is generated alone, and all
    but one call's fixed time of scoring and training is hidden. ``fast_*`` and ``cheap_*``: what
    the planner makes of known lengths with λ = 1 and 0.5: seconds and function-seconds of the
    rollout, the weights pull included, before any sample is moved."""

    step_s: float
    fast_s: float
    fast_held_s: float
    cheap_s: float
    cheap_held_s: float


def bounds(step: Step, pace: Pace, actors: int) -> Bounds:
    lengths = {sample: len(tokens) for sample, tokens in step.responses.items()}
    items = [
        Item(
            id=sample,
            group=int(sample.split("/")[1]),
            tokens=length,
            prompt_tokens=len(step.prompts[sample].tokens),
            forecast=certain(length),
        )
        for sample, length in lengths.items()
    ]
    longest = max(items, key=lambda item: item.tokens)
    alone_s = longest.tokens * (
        pace.iteration_s
        + pace.row_s
        + pace.context_s * (longest.prompt_tokens + longest.tokens / 2)
    )
    first_s = pace.pull_s + pace.prefill_s + pace.prefill_token_s * longest.prompt_tokens
    cost = true_costs(pace)
    decisions = [
        choose(
            items,
            Situation(
                max_actors=actors,
                cost=cost,
                time_weight=weight,
                num_warm=actors,
                capacity=Capacity(pace.max_batch, pace.kv_tokens),
                prefixes=Prefixes(load_s=_loads(items, cost)),
            ),
        ).chosen
        for weight in (1.0, 0.5)
    ]
    (fast_s, fast_held_s), (cheap_s, cheap_held_s) = (
        (
            (plan.seconds or 0.0) + pace.pull_s,
            (plan.actor_seconds or 0.0) + plan.num_actors * pace.pull_s,
        )
        for plan in decisions
    )
    step_s = first_s + alone_s + pace.score_s + pace.train_s
    return Bounds(step_s, fast_s, fast_held_s, cheap_s, cheap_held_s)


def true_costs(pace: Pace) -> CostModel:
    move = (pace.latency_s, 1 / pace.bandwidth)
    return CostModel(
        coefficients={
            **PRIORS,
            "decode": (pace.iteration_s, pace.row_s, pace.context_s),
            "prefill": (pace.prefill_s, pace.prefill_token_s),
            "training": (pace.train_s, pace.train_token_s),
            "kv_load": move,
            "kv_publish": move,
        },
        measured=frozenset(PRIORS),
    )


def _loads(items: Sequence[Item], cost: CostModel) -> dict[int, float]:
    """Group -> seconds to load its prompt."""
    tokens = {item.group: item.prompt_tokens for item in items}
    return {g: cost.kv_load_s(n * KV_LAYOUT.token_bytes) for g, n in tokens.items()}
