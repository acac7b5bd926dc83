"""What the policies learn from a step: lengths, and the time of every kind of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from controller.collector import FinishedSample
from controller.job import Job, Prompt
from controller.ledger import Ledger
from controller.rollout_stats import RolloutStats
from controller.timeline import Timeline
from rlhfless.messages import TrainDone
from rlhfless.spec import GROUP_WISE, JobSpec
from scaling import cost_model, length_score, lengths
from scaling.cost_model import CostState, Observation
from scaling.lengths import LengthState

if TYPE_CHECKING:
    from controller.planning import RolloutPlan


class EngineLimits(msgspec.Struct, frozen=True):
    """What one rollout instance holds, as in ``RolloutDone``; 0: not known."""

    max_batch: int = 0
    kv_capacity: int = 0
    kv_token_bytes: int = 0
    kv_block_tokens: int = 0


class PolicyState(msgspec.Struct, frozen=True):
    """What the policies have learned up to a step."""

    engine: EngineLimits = EngineLimits()
    moved_share: float = 0.0
    """Further actors that came to need a prompt because samples moved, for each prompt of a step;
    an average that forgets."""
    training_share: float = 1.0
    """Of an update's work, what overlap left to the newest train call."""

    lengths: LengthState = LengthState()
    costs: CostState = CostState()


_decoder = msgspec.msgpack.Decoder(PolicyState)


def encode_state(state: PolicyState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_state(data: bytes | None) -> PolicyState:
    return PolicyState() if data is None else _decoder.decode(data)


def observed_lengths(
    finished: Sequence[FinishedSample], prompt_of: Mapping[str, Prompt]
) -> dict[str, list[int]]:
    """Response lengths by prompt key."""
    observed: dict[str, list[int]] = {}
    for sample in finished:
        observed.setdefault(prompt_of[sample.id].key, []).append(len(sample.tokens))
    return observed


def rollout_observations(stats: RolloutStats) -> list[Observation]:
    """What a rollout's calls measured."""
    seen: list[Observation] = []
    for done in stats.calls:
        seen += [
            cost_model.decode(
                done.iterations, done.generated_tokens, done.context_tokens, done.decode_s
            ),
            cost_model.prefill(done.prefill_computed, done.prefill_s),
            cost_model.weights_pull(done.weights_bytes, done.weights_pull_s),
            cost_model.kv_load(done.kv_loaded_bytes, done.kv_load_s, done.kv_loads),
            cost_model.kv_publish(done.kv_published_bytes, done.kv_publish_s),
        ]
    for prefilled in stats.prefills:
        seen += [
            cost_model.prefill(prefilled.tokens_computed, prefilled.prefill_s),
            cost_model.kv_publish(prefilled.published_bytes, prefilled.publish_s),
            cost_model.weights_pull(prefilled.weights_bytes, prefilled.weights_pull_s),
        ]
    return seen


def learn_rollout(
    job: Job,
    plan: RolloutPlan,
    prompt_of: Mapping[str, Prompt],
    finished: Sequence[FinishedSample],
    stats: RolloutStats,
    state: PolicyState,
    start_s: float,
    now_s: float,
) -> tuple[PolicyState, dict[str, float]]:
    """The state after the rollout of a step that began at ``start_s`` (loop seconds; ``now_s``: the
    present), and metrics of how good the lengths were that had been predicted."""
    observed = observed_lengths(finished, prompt_of)
    known = state.lengths.overall is not None
    metrics = length_score.score(plan.forecasts, observed) if known else {}
    sizes = {prompt.key: len(prompt.tokens) for prompt in prompt_of.values()}
    limit = job.spec.rollout.max_tokens
    since_s = start_s if state.costs.cold_starts else float("-inf")
    starts = cold_starts(job.ledger, job.timeline, since_s, now_s)
    learned = PolicyState(
        lengths=lengths.update(state.lengths, observed, limit, sizes),
        costs=cost_model.observe(state.costs, rollout_observations(stats), starts),
        engine=engine_limits(stats, state.engine),
        training_share=state.training_share,
        moved_share=(state.moved_share + stats.moved_prompts / max(1, len(observed))) / 2,
    )
    return learned, metrics


def learn_training(
    spec: JobSpec,
    state: PolicyState,
    tokens: int,
    trained: TrainDone,
    starts: Sequence[tuple[str, float]] = (),
) -> PolicyState:
    """``tokens``: prompts and responses trained on; ``starts``: ``cold_starts`` meanwhile."""
    return msgspec.structs.replace(
        state,
        costs=cost_model.observe(state.costs, [_training(spec, tokens, trained)], starts),
        training_share=_left(spec, trained),
    )


def cost_errors(
    spec: JobSpec, plan: RolloutPlan, stats: RolloutStats, tokens: int, trained: TrainDone
) -> dict[str, float]:
    """Metrics of how good the times were that the plan's cost model predicts for what ran."""
    return cost_model.errors(
        plan.cost, [*rollout_observations(stats), _training(spec, tokens, trained)]
    )


def _training(spec: JobSpec, tokens: int, trained: TrainDone) -> Observation:
    return cost_model.training(round(_left(spec, trained) * tokens), trained.train_s)


def _left(spec: JobSpec, trained: TrainDone) -> float:
    """The share of the update's work that overlap left to the train call."""
    ready = trained.metrics.get("training/overlapped_share", 0.0)
    return 1.0 - ready * work_ahead(spec)


def work_ahead(spec: JobSpec) -> float:
    """The share of an update's work that overlap can do at most."""
    training = spec.training
    gradients = spec.algorithm.name in GROUP_WISE and not (
        training.trainable == "lora" and training.lora.dropout > 0
    )
    return cost_model.ahead_share(training.minibatches, training.passes, gradients=gradients)


def cold_starts(
    ledger: Ledger, timeline: Timeline, since_s: float, until_s: float
) -> list[tuple[str, float]]:
    """(function, seconds) of instances that became ready after ``since_s`` and by ``until_s``, and
    (function ``load``, seconds) of first calls that had to load what a warm instance has."""
    starts: list[tuple[str, float]] = [
        (span.function, span.end_s - span.start_s)
        for span in ledger.spans_since(since_s)
        if span.phase == "cold" and span.end_s <= until_s
    ]
    return starts + [
        (f"{function} load", load_s)
        for end_s, function, load_s in timeline.loads
        if since_s < end_s <= until_s
    ]


def engine_limits(stats: RolloutStats, known: EngineLimits) -> EngineLimits:
    """As calls told, or as ``known`` where none did. Memory is not the same everywhere: the least
    of a step's calls counts."""
    told = [done for done in stats.calls if done.kv_capacity]
    if not told:
        return known
    return EngineLimits(
        max_batch=min(done.max_batch for done in told),
        kv_capacity=min(done.kv_capacity for done in told),
        kv_token_bytes=told[-1].kv_token_bytes,
        kv_block_tokens=told[-1].kv_block_tokens,
    )
