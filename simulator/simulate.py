"""A job in simulation: the real orchestrator on virtual time, on a simulated cluster.

Where ``Options.max_steps`` says so, a shorter job stands for a long one (``simulator.sampling``).
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from controller.books import Books
from controller.dataset import PromptOrder
from controller.deployments import deployments
from controller.dispatch import Dispatcher, RetryPolicy
from controller.job import Data, Event, Job
from controller.ledger import Ledger
from controller.orchestrator import Orchestrator
from controller.timeline import Timeline
from controller.tokenizer import PromptTokenizer
from rlhfless.errors import InternalError
from rlhfless.seeds import derive
from rlhfless.spec import BudgetSpec, JobSpec
from simulator import clock
from simulator.accounts import Accounts, Segment
from simulator.cluster import Cluster
from simulator.memory import MemoryJournal, MemoryObjects
from simulator.platform import SimulatedPlatform
from simulator.platform.costs import Costs
from simulator.platform.lengths import Responses
from simulator.result import Simulation, StepFound
from simulator.room import with_asked_accelerators
from simulator.sampling import choose_steps, fewer_prompts
from simulator.scenario import Scenario

Progress = Callable[[int, int], None]
"""Told (steps simulated, steps to simulate)."""

SHOWN = 3
"""Steps that the Gantt chart shows: the last ones."""


@dataclass(frozen=True)
class Options:
    """``max_steps``: simulate no more steps than so many, spread over the job; None: all of
    them."""

    seed: int = 0
    max_steps: int | None = None


def simulate(
    spec: JobSpec,
    cluster: Cluster,
    scenario: Scenario,
    *,
    strategy: str = "rlhfless",
    options: Options = Options(),
    progress: Progress | None = None,
) -> Simulation:
    """Run ``spec`` (whose switches say how, see ``simulator.strategies``) on ``cluster``.

    ``strategy`` is its name in the result. The job's budget is left aside. Raises ``UserError``
    where the job does not fit the cluster; ``simulator.clock.Deadlock`` would be a defect.
    """
    cluster = with_asked_accelerators(spec, cluster)
    costs = Costs(spec, cluster, scenario)
    run = _Run(spec, cluster, scenario, costs, options, progress)
    with _collecting_rarely():
        return clock.run(run.go(strategy))


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Millions of short-lived objects of which few are in cycles: looking for these after every 700
    costs a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _NoText:
    """Responses in a simulation say nothing."""

    def decode(self, responses: Sequence[Sequence[int]], stop: Sequence[int]) -> list[str]:  # noqa: ARG002
        return [""] * len(responses)


class _Run:
    def __init__(
        self,
        spec: JobSpec,
        cluster: Cluster,
        scenario: Scenario,
        costs: Costs,
        options: Options,
        progress: Progress | None,
    ) -> None:
        self._cluster = cluster
        self._scenario = scenario
        self._costs = costs
        self._options = options
        self._progress = progress
        self._asked = spec
        order = PromptOrder(len(scenario.prompts), spec.seed, spec.dataset.shuffle)
        training = spec.training
        steps = order.num_steps(training.prompts_per_step, training.steps, training.epochs)
        self._chosen = choose_steps(steps, options.max_steps, training.checkpoint_every)
        count = fewer_prompts(len(scenario.prompts), training.prompts_per_step, self._chosen)
        self._prompts = list(scenario.prompts[:count])
        self._spec = self._shortened(spec)
        self._ends_s: list[float] = []
        self._began_s = 0.0
        self._records: list[Any] = []

    def _shortened(self, spec: JobSpec) -> JobSpec:
        few = {"steps": len(self._chosen.of), "checkpoint_every": self._chosen.checkpoint_every}
        training = spec.training.model_copy(update=few)
        evaluation = spec.evaluation
        if evaluation is not None and len(self._chosen.of) < self._chosen.steps:
            evaluation = evaluation.model_copy(update={"every": 0})
        changes = {"training": training, "evaluation": evaluation, "budget": BudgetSpec()}
        return spec.model_copy(update=changes)

    async def go(self, strategy: str) -> Simulation:
        spec, scenario = self._spec, self._scenario
        loop = asyncio.get_running_loop()
        ledger = Ledger()
        objects = MemoryObjects()
        responses = Responses(
            scenario.workload,
            (*self._prompts, *scenario.evaluation),
            spec.algorithm.group_size,
            lambda step: self._chosen.of[min(step, len(self._chosen.of) - 1)],
        )
        platform = SimulatedPlatform(
            deployments(spec),
            self._cluster,
            self._costs,
            responses,
            objects,
            ledger,
            self._options.seed,
        )
        timeline = Timeline()
        job = Job(
            id="simulated",
            spec=spec,
            data=self._data(),
            objects=objects,
            journal=MemoryJournal(step_s=self._costs.step_s),
            dispatcher=Dispatcher(
                platform,
                timeline,
                random.Random(derive(self._options.seed, "retries")),
                RetryPolicy(attempts=8),
            ),
            timeline=timeline,
            ledger=ledger,
            books=Books(ledger, {}, loop.time()),
            observe=self._observe,
        )
        try:
            for function in spec.functions():
                await platform.scale(function, 1)
            outcome = await Orchestrator(job, "weights").run()
            ended_s = loop.time()
        finally:
            await platform.close()
        if outcome.status != "succeeded":
            raise InternalError(f"the simulated job {outcome.status}: {outcome.reason}")
        accounts = Accounts(ledger, platform.holdings, self._segments(ended_s), ended_s)
        return self._result(strategy, accounts, platform.preemptions)

    def _data(self) -> Data:
        return Data(
            tokenizer=cast(PromptTokenizer, _NoText()),
            stop_token_ids=[0],
            prompts=self._prompts,
            order=PromptOrder(len(self._prompts), self._spec.seed, self._spec.dataset.shuffle),
            evaluation=list(self._scenario.evaluation),
        )

    def _observe(self, event: Event) -> None:
        now_s = asyncio.get_running_loop().time()
        if event.kind == "rollout" and not self._ends_s:
            self._began_s = now_s
        if event.kind == "step":
            self._ends_s.append(now_s)
            self._records.append(event.data["record"])
            if self._progress is not None:
                self._progress(len(self._ends_s), len(self._chosen.of))

    def _segments(self, ended_s: float) -> list[Segment]:
        """The simulated time, each stretch with how often the job has its like: before the first
        step, the steps, and the end. Evaluations in between that were left out are like the one
        at the end."""
        found = [Segment(0.0, self._began_s, 1.0)]
        begin_s = self._began_s
        for end_s, weight in zip(self._ends_s, self._chosen.weights, strict=True):
            found.append(Segment(begin_s, end_s, weight))
            begin_s = end_s
        left_out = 0
        evaluation = self._asked.evaluation
        if evaluation is not None and evaluation.every and self._spec.evaluation != evaluation:
            left_out = (self._chosen.steps - 1) // evaluation.every
        found.append(Segment(begin_s, ended_s, 1.0 + left_out))
        return found

    def _result(self, strategy: str, accounts: Accounts, preemptions: int) -> Simulation:
        steps = [self._step(k) for k in range(len(self._records))]
        first_shown = max(0, len(steps) - SHOWN)
        begin_s = self._ends_s[first_shown - 1] if first_shown else 0.0
        window = (begin_s, self._ends_s[-1])
        share = self._chosen.steps / len(steps)
        return Simulation(
            job=self._spec.name,
            cluster=self._cluster.name,
            strategy=strategy,
            seed=self._options.seed,
            steps=self._chosen.steps,
            samples_per_step=self._spec.training.prompts_per_step * self._spec.algorithm.group_size,
            simulated=tuple(steps),
            seconds=accounts.seconds,
            usage=accounts.usage(),
            tokens=sum(step.stands_for * step.tokens for step in steps),
            prompt_tokens=sum(step.stands_for * step.prompt_tokens for step in steps),
            preemptions=preemptions * share,
            spans=accounts.spans(*window),
            window_s=window,
            assumptions=(*self._scenario.assumptions, *self._costs.assumptions),
            spec=self._asked.model_dump(mode="json"),
        )

    def _step(self, k: int) -> StepFound:
        record = self._records[k]
        metrics = record.metrics
        samples = self._spec.training.prompts_per_step * self._spec.algorithm.group_size
        begin_s = self._ends_s[k - 1] if k else self._began_s
        outcome = record.plan.get("outcome", {})
        needed = metrics.get("prefill/tokens_computed", 0) + metrics.get("prefill/tokens_saved", 0)
        return StepFound(
            step=self._chosen.of[k] + 1,
            stands_for=self._chosen.weights[k],
            seconds=self._ends_s[k] - begin_s,
            rollout_s=metrics["time/rollout_s"],
            scoring_s=metrics["time/scoring_tail_s"],
            train_s=metrics["time/train_s"],
            actors=int(metrics["rollout/actors"]),
            tokens=round(metrics["response_length/mean"] * samples),
            prompt_tokens=round(needed),
            longest=int(metrics["response_length/max"]),
            moved=int(outcome.get("moved", 0)),
            metrics=metrics,
            plan=record.plan,
        )
