"""A step's metrics under their public names (``docs/metrics.md`` explains each)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.collector import FinishedSample
from controller.journal import Scores
from controller.ledger import Usage
from controller.rollout_stats import RolloutStats
from rlhfless.messages import TrainDone, finite
from rlhfless.spec import JobSpec, reward_name


@dataclass(frozen=True)
class StepTimes:
    """Seconds. ``scoring_tail_s``: from the last token to the last score. ``overhead_s``: time in
    which no function worked; ``controller_s`` of that: no call was under way. ``train_s`` as the
    training function measured it."""

    step_s: float
    rollout_s: float
    scoring_tail_s: float
    train_s: float
    overhead_s: float
    controller_s: float


@dataclass(frozen=True)
class StepFacts:
    """A finished step: ``samples`` in the plan's order and their ``scores``, what the rollout and
    the training call reported, times, and what was held meanwhile."""

    step: int
    samples: Sequence[FinishedSample]
    scores: Mapping[str, Scores]
    rollout: RolloutStats
    num_actors: int
    trained: TrainDone
    times: StepTimes
    usage: Usage


def step_metrics(spec: JobSpec, facts: StepFacts) -> dict[str, float]:
    """All metrics of a committed step; ``step`` counts from 1 here, as people do."""
    samples, scores = facts.samples, facts.scores
    times, usage, stats = facts.times, facts.usage, facts.rollout
    lengths = [len(s.tokens) for s in samples]
    totals = [scores[s.id].total for s in samples]
    mean_reward = sum(totals) / len(totals)
    metrics: dict[str, float] = {
        "step": facts.step + 1,
        "reward/mean": mean_reward,
        "reward/std": (sum((t - mean_reward) ** 2 for t in totals) / len(totals)) ** 0.5,
        "response_length/mean": sum(lengths) / len(lengths),
        "response_length/min": min(lengths),
        "response_length/max": max(lengths),
        "response_length/clip_ratio": sum(s.reason == "length" for s in samples) / len(samples),
    }
    for index, reward in enumerate(spec.rewards):
        parts = [scores[s.id].parts[index] for s in samples]
        applied = [part for part in parts if part is not None]
        if applied:
            metrics[f"reward/{reward_name(reward)}"] = sum(applied) / len(applied)
    metrics |= facts.trained.metrics
    metrics |= {
        "time/step_s": times.step_s,
        "time/rollout_s": times.rollout_s,
        "time/scoring_tail_s": times.scoring_tail_s,
        "time/train_s": times.train_s,
        "time/publish_s": facts.trained.publish_s,
        "time/restore_s": facts.trained.restore_s,
        "time/weights_pull_s": stats.weights_pull_s,
        "time/overhead_s": times.overhead_s,
        "time/controller_s": times.controller_s,
        "functions/held_s": usage.held_s,
        "functions/busy_s": usage.busy_s,
        "functions/cold_s": usage.cold_s,
        "functions/idle_fraction": usage.idle_fraction,
        "rollout/actors": facts.num_actors,
        "rollout/lost_calls": stats.lost_calls,
        "rollout/samples_moved": stats.moved,
        "rollout/instances_released": stats.released,
        "prefill/tokens_computed": stats.prefill_computed,
        "prefill/tokens_loaded": stats.prefill_loaded,
        "prefill/tokens_reused": stats.prefill_reused,
        "prefill/tokens_saved": stats.prefill_saved,
        "prefill/kv_bytes": stats.kv_bytes,
        **_hit_shares(stats),
        **drafting_metrics(stats),
        "weights/pulled_bytes": stats.weights_bytes,
        "tokens_per_s": sum(lengths) / times.step_s if times.step_s > 0 else 0.0,
    }
    return finite(metrics)


def drafting_metrics(stats: RolloutStats) -> dict[str, float]:
    """Nothing where nothing was drafted."""
    if not stats.draft_tokens:
        return {}
    return {
        "drafting/draft_tokens": stats.draft_tokens,
        "drafting/accepted_tokens": stats.accepted_tokens,
        "drafting/acceptance": stats.accepted_tokens / stats.draft_tokens,
    }


def _hit_shares(stats: RolloutStats) -> dict[str, float]:
    """Of the prompt tokens that samples needed, how many came from where."""
    needed = stats.prefill_computed + stats.prefill_saved
    if not needed:
        return {}
    # Prefill calls load for no sample.
    loaded = sum(done.prefill_loaded for done in stats.calls)
    reused = sum(done.prefill_reused for done in stats.calls)
    within = sum(done.prefill_saved for done in stats.calls) - loaded - reused
    return {
        "prefill/hit_share_store": loaded / needed,
        "prefill/hit_share_memory": reused / needed,
        "prefill/hit_share_call": max(0, within) / needed,
    }
