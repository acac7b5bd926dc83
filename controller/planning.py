"""The plan of a step: which prompts, which samples, how many actors, who generates what.

Pure: the same job, step and policy state give the same plan, so a controller that takes a step
over plans the very samples its predecessor did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from controller.collector import Sample
from controller.dataset import Position
from controller.job import Prompt, Surroundings
from controller.learning import EngineLimits, PolicyState
from controller.rollout_stats import RolloutStats
from prefix_cache.plan import PrefixPlan, plan_prefixes
from prefix_cache.segments import PrefixCosts
from prefix_cache.tree import PrefixTree, build_tree
from rlhfless.seeds import derive
from rlhfless.spec import JobSpec
from scaling import actors, cost_model, lengths
from scaling.actors import ActorDecision
from scaling.cost_model import CostModel
from scaling.forecasts import Forecast
from scaling.items import Items
from scaling.lengths import LengthState
from scaling.plans import Situation, static_reference
from scaling.work import Capacity, Prefixes


@dataclass(frozen=True)
class StepPlan:
    """``prompts[g]`` is the prompt of group g; ``position`` is where the next step's order begins.

    ``prompt_of`` and ``group_of`` map sample ids to prompts and groups.
    """

    step: int
    prompts: tuple[Prompt, ...]
    samples: tuple[Sample, ...]
    position: Position

    @cached_property
    def prompt_of(self) -> dict[str, Prompt]:
        return {sample.id: self.prompts[sample.group] for sample in self.samples}

    @cached_property
    def group_of(self) -> dict[str, int]:
        return {sample.id: sample.group for sample in self.samples}


def plan_step(job: Surroundings, step: int, position: Position) -> StepPlan:
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


@dataclass(frozen=True)
class RolloutPlan:
    """How samples are generated. ``decision`` None: there is nothing to generate. ``forecasts``: by
    prompt key. ``reference``: seconds and function-seconds of the static plan, which the objective
    measures in; None before anything was measured. ``prefixes`` None: no keys and values are shared
    between instances. ``load_s``: group -> seconds to load its prompt, where that pays and some
    instance stores it. ``capacity``: of one instance.
    ``training_share``: of the update's work, what overlap leaves to the train call."""

    decision: ActorDecision | None
    forecasts: Mapping[str, Forecast]
    cost: CostModel
    reference: tuple[float, float] | None = None
    prefixes: PrefixPlan | None = None
    load_s: Mapping[int, float] = field(default_factory=dict)
    training_share: float = 1.0
    capacity: Capacity = field(default_factory=Capacity)

    def training_s(self, batch_tokens: int) -> float:
        """Predicted seconds of the train call."""
        return self.cost.training_s(self.training_share * batch_tokens)

    @property
    def assignment(self) -> Sequence[Sequence[str]]:
        return () if self.decision is None else self.decision.chosen.assignment


def plan_rollout(
    spec: JobSpec,
    samples: Sequence[Sample],
    prompts: Sequence[Prompt],
    state: PolicyState,
    warm: int,
    head_start_s: float = 0.0,
    max_actors: int | None = None,
) -> RolloutPlan:
    """Choose the actors for ``samples`` and what they share; ``prompts[g]`` is the prompt of group
    g. ``warm`` instances need no cold start; others can be started ``head_start_s`` ahead.
    ``max_actors`` None: as many as the spec allows."""
    scheduling = spec.scheduling
    forecasts = forecast_lengths(spec, prompts, state)
    cost = cost_model.fit(state.costs)
    if not samples:
        return RolloutPlan(None, forecasts, cost)
    items = Items.fresh(
        [sample.id for sample in samples],
        [sample.group for sample in samples],
        [forecasts[prompt.key] for prompt in prompts],
        [len(prompt.tokens) for prompt in prompts],
    )
    tree = _tree(spec, prompts, state.engine)
    load_s = _loads(spec, prompts, cost, state)
    most = spec.rollout.max_instances if max_actors is None else max_actors
    situation = Situation(
        max_actors=most,
        min_actors=1 if scheduling.scale_actors else most,
        cost=cost,
        time_weight=spec.objective.time_weight,
        num_warm=warm,
        cold_start_s=cost.cold_start_s("rollout"),
        head_start_s=head_start_s,
        strategies=_strategies(scheduling.assignment),
        early_release=scheduling.early_release,
        slowest=spec.objective.max_slowdown or math.inf,
        capacity=_capacity(spec, state),
        prefixes=Prefixes(dedup=scheduling.dedup_prefill, load_s=load_s, segments=_segments(tree)),
        seed=derive(spec.seed, "assignment", samples[0].id),
    )
    reference = None
    if "decode" in cost.measured:
        reference = static_reference(items, situation)
    decision = actors.choose(items, replace(situation, reference=reference))
    prefixes = _prefixes(spec, samples, prompts, decision, cost, state, tree)
    share = state.training_share if spec.training.overlap else 1.0
    return RolloutPlan(
        decision=decision,
        forecasts=forecasts,
        cost=cost,
        reference=reference,
        prefixes=prefixes,
        load_s=_stored(load_s, samples, decision, prefixes),
        training_share=share,
        capacity=situation.capacity,
    )


def forecast_lengths(
    spec: JobSpec, prompts: Sequence[Prompt], state: PolicyState
) -> dict[str, Forecast]:
    """By prompt key; the same for every prompt where lengths are not to be predicted."""
    known = state.lengths if spec.scheduling.predict_lengths else LengthState()
    sizes = {prompt.key: len(prompt.tokens) for prompt in prompts}
    return lengths.forecasts(known, sizes, spec.rollout.max_tokens)


def _strategies(assignment: str) -> tuple[str, ...]:
    return ("group_affine", "balanced", "sorted") if assignment == "auto" else (assignment,)


def _capacity(spec: JobSpec, state: PolicyState) -> Capacity:
    """Rows and tokens that one instance decodes together."""
    engine = state.engine
    bounds = [bound for bound in (spec.rollout.max_batch, engine.max_batch) if bound]
    return Capacity(max_batch=min(bounds, default=0), kv_tokens=engine.kv_capacity)


def _loads(
    spec: JobSpec, prompts: Sequence[Prompt], cost: CostModel, state: PolicyState
) -> dict[int, float]:
    """Group -> seconds to load its prompt's keys and values, where that beats computing them."""
    token_bytes = state.engine.kv_token_bytes
    if not _shares_prefixes(spec) or not token_bytes:
        return {}
    loads = {}
    for group, prompt in enumerate(prompts):
        length = len(prompt.tokens)
        tokens = _storable(length, state.engine)
        load_s = cost.kv_load_s(tokens * token_bytes)
        if tokens and load_s < cost.prefill_s(tokens, calls=0):
            loads[group] = load_s + cost.prefill_s(length - tokens, calls=0)
    return loads


def _storable(length: int, engine: EngineLimits) -> int:
    """Of a prompt's tokens, those that the engine could store."""
    block = engine.kv_block_tokens
    return (length - 1) // block * block if block else length


def _stored(
    load_s: Mapping[int, float],
    samples: Sequence[Sample],
    decision: ActorDecision,
    prefixes: PrefixPlan | None,
) -> dict[int, float]:
    """Of ``load_s``, the groups whose prompts are stored: by prefill calls for those that several
    actors have, by the actors where these publish."""
    if prefixes is None or not prefixes.load:
        return {}
    group_of = {sample.id: sample.group for sample in samples}
    actors_of = Counter(
        group for ids in decision.chosen.assignment for group in {group_of[i] for i in ids}
    )
    return {
        group: seconds
        for group, seconds in load_s.items()
        if prefixes.cuts[group] and (prefixes.publish or actors_of[group] > 1)
    }


def _tree(spec: JobSpec, prompts: Sequence[Prompt], engine: EngineLimits) -> PrefixTree | None:
    """What prompts have in common, as far as the engine can share it; None where they share
    nothing."""
    if not _shares_prefixes(spec):
        return None
    # The last token is in no node.
    bodies = [prompt.tokens[: _storable(len(prompt.tokens), engine) + 1] for prompt in prompts]
    return build_tree(bodies, max(spec.scheduling.block_tokens, engine.kv_block_tokens))


def _segments(tree: PrefixTree | None) -> dict[int, tuple[tuple[int, int], ...]]:
    """Group -> of its prompt (node of the prefix tree, tokens) that others share."""
    if tree is None:
        return {}
    sizes = [node.end - node.start if len(node.prompts) > 1 else 0 for node in tree.nodes]
    return {
        group: path
        for group in range(len(tree.last))
        if (path := tuple((n, sizes[n]) for n in tree.path(group) if sizes[n]))
    }


def _shares_prefixes(spec: JobSpec) -> bool:
    return spec.scheduling.prefix_cache and spec.scheduling.dedup_prefill


def _prefixes(
    spec: JobSpec,
    samples: Sequence[Sample],
    prompts: Sequence[Prompt],
    decision: ActorDecision,
    cost: CostModel,
    state: PolicyState,
    tree: PrefixTree | None,
) -> PrefixPlan | None:
    """What is stored for others to load; None where nothing can be, or nothing is known yet."""
    scheduling = spec.scheduling
    if (
        not _shares_prefixes(spec)
        or not state.engine.kv_token_bytes
        or "prefill" not in cost.measured
    ):
        return None
    group_of = {sample.id: sample.group for sample in samples}
    prefill_call_s, prefill_token_s = cost.coefficients["prefill"]
    load_call_s, load_byte_s = cost.coefficients["kv_load"]
    publish_call_s, publish_byte_s = cost.coefficients["kv_publish"]
    return plan_prefixes(
        [prompt.tokens for prompt in prompts],
        [{group_of[sample] for sample in ids} for ids in decision.chosen.assignment],
        PrefixCosts(
            prefill_token_s=prefill_token_s,
            prefill_call_s=prefill_call_s,
            load_call_s=load_call_s,
            load_byte_s=load_byte_s,
            publish_call_s=publish_call_s,
            publish_byte_s=publish_byte_s,
            bytes_per_token=state.engine.kv_token_bytes,
        ),
        block_tokens=scheduling.block_tokens,
        max_bytes=scheduling.kv_store_mb << 20,
        moved=state.moved_share if scheduling.migrate else 0.0,
        tree=tree,
    )


def describe(plan: RolloutPlan, stats: RolloutStats, rollout_s: float) -> dict[str, Any]:
    """The decision, its alternatives and what came of it, for the journal."""
    decision = plan.decision
    if decision is None:
        return {}
    described: dict[str, Any] = {
        "actors": decision.chosen.num_actors,
        "strategy": decision.chosen.strategy,
        "reason": decision.reason,
        "alternatives": [
            {
                "actors": each.num_actors,
                "strategy": each.strategy,
                "seconds": each.seconds,
                "function_seconds": each.actor_seconds,
                "score": each.score,
                "chosen": each is decision.chosen,
            }
            for each in decision.alternatives
        ],
        "outcome": {
            "seconds": rollout_s,
            "predicted_s": decision.chosen.seconds,
            "moved": stats.moved,
            "released": stats.released,
        },
    }
    if plan.prefixes is not None:
        described["prefix"] = {
            "reason": plan.prefixes.reason,
            "tokens_computed": plan.prefixes.tokens_computed,
            "tokens_loaded": plan.prefixes.tokens_loaded,
            "tokens_saved": plan.prefixes.tokens_saved,
            "stored_bytes": plan.prefixes.stored_bytes,
        }
    return described
