"""What the work of a job's functions takes on a cluster: seconds, bytes and accelerators.

The roofline says it, and measurements (``rlhfless.measurements``) where there are some. What
neither knows is assumed, and ``assumptions`` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from controller.learning import work_ahead
from rlhfless.errors import UserError
from rlhfless.measurements import Measurements
from rlhfless.messages import FunctionName
from rlhfless.spec import JobSpec
from simulator.cluster import Cluster, Pool
from simulator.drafting import DraftedEngine
from simulator.measured_engine import MeasuredEngine
from simulator.model_shape import ModelShape, load_shape
from simulator.roofline import (
    BLOCK_TOKENS,
    EngineCost,
    InferenceCost,
    Layout,
    TrainingCost,
    kv_blocks,
)
from simulator.roofline.operators import Array
from simulator.room import trainable_share
from simulator.scenario import Scenario

MAX_BATCH = 256
"""Rows an engine decodes together where nothing else bounds them; vLLM's long-time default."""
RULE_CALL_S, RULE_SAMPLE_S = 5e-3, 1e-3
"""A Python reward that compares text, assumed where none was measured."""
HTTP_CALL_S, HTTP_SAMPLE_S = 0.2, 5e-3
"""A reward behind HTTP, assumed likewise."""
VALUE_FACTOR = 2.0
"""PPO trains a value model of the policy's size beside it."""
SLEEP_S = 0.2
"""An engine puts itself to sleep or wakes up, beside moving its weights between the host's memory
and the accelerator's; assumed."""
OPTIMIZER_BYTES = 16
"""Of a trained parameter: fp32 copy and gradient, both moments of AdamW."""
CHECKPOINT_BYTES = 12
"""Of them, what a checkpoint holds: the copy and the moments."""


@dataclass(frozen=True)
class Limits:
    """What one rollout instance decodes together. ``kv_token_bytes`` 0: it stores no keys."""

    max_batch: int
    kv_tokens: int
    kv_token_bytes: int


class Costs:
    """Of a job on a cluster. Raises ``UserError`` where something does not fit."""

    def __init__(self, spec: JobSpec, cluster: Cluster, scenario: Scenario) -> None:
        self._spec = spec
        self._cluster = cluster
        self._shape = scenario.shape
        self._measured = scenario.measurements or Measurements()
        self._drafting = scenario.drafting
        longest = max((len(prompt.tokens) for prompt in scenario.prompts), default=0)
        self._context_tokens = longest + spec.rollout.max_tokens
        self.assumptions: list[str] = []
        self._reward_models = self._load_reward_models()
        self._engine = cache(self._make_engine)
        self._training = cache(self._make_training)
        self._layout = cache(self._make_layout)
        self._scorers = cache(self._make_scorers)
        share = trainable_share(spec, self._shape)
        self._layout_share = share
        version = self._measured.training.weights_bytes
        self.version_bytes = float(version or round(share * self._shape.weight_bytes))
        """What an instance pulls of a new version: what is trained."""
        self.kv_token_bytes = (
            self._measured.rollout.kv_token_bytes or self._shape.kv_bytes_per_token
        )
        self.checkpoint_bytes = share * self._shape.parameters * CHECKPOINT_BYTES

    # --- sizes ------------------------------------------------------------------------------------

    def accelerators(self, function: FunctionName, pool: Pool) -> int:
        """Of one instance in a pool; 0: it runs on the host's CPUs. Raises ``UserError``."""
        if function == "training":
            return self._layout(pool.name).accelerators
        if function == "reward":
            return max((self._plan(function, pool, s) for s in self._reward_models), default=0)
        return self._plan(function, pool, self._shape)

    def places(self, function: FunctionName) -> list[tuple[Pool, int]]:
        """Pools in which an instance may run and fits, in order of preference, and on how many
        accelerators. Raises ``UserError`` if it fits nowhere."""
        found: list[tuple[Pool, int]] = []
        failure: UserError | None = None
        for pool in self._cluster.pools_for(function):
            try:
                found.append((pool, self.accelerators(function, pool)))
            except UserError as error:
                failure = failure or error
        if not found and failure is not None:
            raise failure
        return found

    def limits(self, pool: Pool) -> Limits:
        measured = self._measured.rollout
        shape, spec = self._shape, self._spec
        degree = self._plan("rollout", pool, shape)
        rows = min(spec.rollout.max_batch or MAX_BATCH, measured.max_batch or MAX_BATCH)
        blocks = kv_blocks(shape, pool.accelerator, degree, max_rows=rows)
        return Limits(
            max_batch=rows,
            kv_tokens=measured.kv_capacity_tokens or blocks * BLOCK_TOKENS,
            kv_token_bytes=self.kv_token_bytes,
        )

    # --- seconds of work --------------------------------------------------------------------------

    def engine(self, pool: Pool) -> EngineCost:
        return self._engine(pool.name)

    def reward_s(self, pool: Pool | None, lengths: Array) -> float:
        """Of a call that scores responses; ``lengths``: ``[samples]`` tokens, prompts included."""
        if self._measured.reward is not None:
            call_s, sample_s = self._measured.reward
            return call_s + sample_s * len(lengths)
        seconds = 0.0
        for reward in self._spec.rewards:
            if reward.python is not None:
                seconds += RULE_CALL_S + RULE_SAMPLE_S * len(lengths)
            elif reward.http is not None:
                seconds += HTTP_CALL_S + HTTP_SAMPLE_S * len(lengths)
        if pool is not None:
            seconds += sum(scorer.prefill_s(lengths) for scorer in self._scorers(pool.name))
        return seconds

    def reference_s(self, pool: Pool, lengths: Array) -> float:
        """Log-probs of whole sequences."""
        engine = self._engine(pool.name)
        return engine.logprobs_s(lengths, self._spec.reference.tokens_per_microbatch)

    def update_s(self, pool: Pool, lengths: Array, ready: float = 0.0) -> float:
        """An update with sequences of ``lengths`` tokens, of which the share ``ready`` was worked
        on ahead."""
        tokens = float(np.sum(lengths))
        done = ready * work_ahead(self._spec)
        measured = self._measured.training.update
        if measured is not None:
            return measured[0] + measured[1] * (1 - done) * tokens
        worst = _imbalance(lengths, self._layout(pool.name).data)
        total_s, compute_s = self._whole_update_s(pool, worst, lengths)
        return total_s - done * compute_s

    def gradients_s(self, pool: Pool, lengths: Array) -> float:
        """A part of an update, begun ahead."""
        tokens, ahead = float(np.sum(lengths)), work_ahead(self._spec)
        measured = self._measured.training
        if measured.gradients is not None:
            return measured.gradients[0] + measured.gradients[1] * tokens
        if measured.update is not None:
            return measured.update[1] * ahead * tokens
        _, compute_s = self._whole_update_s(pool, 1.0, lengths)
        return ahead * compute_s

    def _whole_update_s(self, pool: Pool, worst: float, lengths: Array) -> tuple[float, float]:
        """Seconds, and those of them that grow with the tokens; ``worst``: share of the busiest
        rank over the mean."""
        training, spec = self._training(pool.name), self._spec.training
        tokens = float(np.sum(lengths)) * worst
        pairs = float(np.sum(lengths * lengths)) / 2 * worst
        step = training.step(tokens, pairs, spec.minibatches)
        before_s = 0.0
        if self._ppo:
            before_s += training.forward(tokens, pairs)  # values
        if spec.minibatches > 1:
            # Old log-probs of samples whose turn comes after a change of the weights.
            before_s += (1 - 1 / spec.minibatches) * training.forward(tokens, pairs)
        factor = VALUE_FACTOR if self._ppo else 1.0
        compute_s = spec.passes * (step.compute_s + step.tensor_parallel_s) + before_s
        return factor * (spec.passes * step.total_s + before_s), factor * compute_s

    def publish_s(self) -> float | None:
        """Where it was measured; else it follows from bytes and bandwidth."""
        return self._measured.training.publish_s

    def pull_s(self) -> float | None:
        measured = self._measured.rollout.weights_pull
        return None if measured is None else measured[0] + measured[1] * self.version_bytes

    def kv_s(self, loads: int, num_bytes: float, *, publish: bool) -> float | None:
        """Seconds to load or to store keys and values, where that was measured."""
        rollout = self._measured.rollout
        measured = rollout.kv_publish if publish else rollout.kv_load
        return None if measured is None else measured[0] * loads + measured[1] * num_bytes

    def call_s(self, function: FunctionName) -> float:
        return self._measured.call_s.get(function, 0.0)

    @property
    def step_s(self) -> float:
        return self._measured.step_s or 0.0

    # --- starting ---------------------------------------------------------------------------------

    def start_s(self, function: FunctionName, pool: Pool) -> float:
        """Seconds of a cold start but for loading weights."""
        measured = self._measured.cold_start_s.get(function)
        if measured is not None:
            return measured
        return pool.cold_start.seconds(0.0, math.inf, engine=function == "rollout")

    def start_bytes(self, function: FunctionName) -> float:
        """Bytes each new instance reads before it is ready."""
        if function in self._measured.cold_start_s:
            return 0.0
        if function == "reward":
            return float(sum(shape.weight_bytes for shape in self._reward_models))
        factor = VALUE_FACTOR if self._ppo and function == "training" else 1.0
        return factor * self._shape.weight_bytes

    def load_s(self, function: FunctionName) -> float:
        """What the first call of an instance takes longer, where that was measured."""
        return self._measured.load_s.get(function, 0.0)

    def wake_s(self, function: FunctionName, pool: Pool) -> float:
        """Seconds to bring an instance back from the host's memory, or to put it there."""
        accelerators = max(1, self.accelerators(function, pool))
        num_bytes = self.start_bytes(function)
        if function == "training":
            num_bytes += self._layout_share * self._shape.parameters * OPTIMIZER_BYTES
        return SLEEP_S + num_bytes / accelerators / pool.host_bytes_per_s

    # --- making -----------------------------------------------------------------------------------

    @property
    def _ppo(self) -> bool:
        return self._spec.algorithm.name == "ppo"

    def _plan(self, function: FunctionName, pool: Pool, shape: ModelShape) -> int:
        return self._cluster.plan_instance(function, pool, shape, self._context_tokens)

    def _make_engine(self, pool_name: str) -> EngineCost:
        pool = self._cluster.pools[pool_name]
        degree = self._plan("rollout", pool, self._shape)
        cost: EngineCost = InferenceCost(self._shape, pool.accelerator, pool.fabric, degree)
        if self._measured != Measurements():
            cost = MeasuredEngine(self._measured, cost)
        return cost if self._drafting is None else DraftedEngine(cost, self._drafting)

    def _make_scorers(self, pool_name: str) -> list[InferenceCost]:
        pool = self._cluster.pools[pool_name]
        degrees = [self._plan("reward", pool, shape) for shape in self._reward_models]
        return [
            InferenceCost(shape, pool.accelerator, pool.fabric, degree)
            for shape, degree in zip(self._reward_models, degrees, strict=True)
        ]

    def _make_layout(self, pool_name: str) -> Layout:
        pool, spec = self._cluster.pools[pool_name], self._spec.training
        share = self._layout_share
        return self._cluster.plan_training(pool, self._shape, spec.tokens_per_microbatch, share)

    def _make_training(self, pool_name: str) -> TrainingCost:
        pool = self._cluster.pools[pool_name]
        return TrainingCost(self._shape, pool.accelerator, pool.fabric, self._layout(pool_name))

    def _load_reward_models(self) -> list[ModelShape]:
        shapes = []
        for reward in self._spec.rewards:
            if reward.model is None:
                continue
            try:
                shapes.append(load_shape(reward.model, self._shape.dtype))
            except UserError:
                shapes.append(self._shape)
                self.assumptions.append(
                    f"the reward model {reward.model} is not known: one of the policy's size"
                )
        kinds = {r.python is not None for r in self._spec.rewards if r.model is None}
        if self._measured.reward is None and kinds:
            self.assumptions += [
                f"a {'Python' if python else 'HTTP'} reward takes "
                + (
                    f"{RULE_SAMPLE_S * 1e3:g} ms a sample and {RULE_CALL_S * 1e3:g} ms a call"
                    if python
                    else f"{HTTP_SAMPLE_S * 1e3:g} ms a sample and {HTTP_CALL_S:g} s a call"
                )
                for python in sorted(kinds)
            ]
        return shapes


def sequence_lengths(prompts: ArrayLike, responses: ArrayLike) -> Array:
    """``[samples]`` tokens of prompt and response together."""
    return np.asarray(prompts, np.float64) + np.asarray(responses, np.float64)


def _imbalance(lengths: Array, ranks: int) -> float:
    """The largest share of a data-parallel rank over an equal one, when samples are dealt out
    longest first, each to the rank with the least: at least the longest sample alone."""
    if ranks <= 1 or not len(lengths):
        return 1.0
    equal = float(np.sum(lengths)) / ranks
    return max(1.0, float(np.max(lengths)) / equal)
