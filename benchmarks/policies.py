"""What the controller's own work costs: planning, looking, learning, book-keeping of a step.

    python -m benchmarks.policies [--quick] [--json FILE] [--profile PART] [--largest N]

Nothing is generated: a step's samples are made up (lognormal lengths, groups of 8, prompts of 512
tokens, a third of which they have in common) and the controller's parts run on them as they do in a
live job. Each part is timed for growing numbers of samples and actors: CPU time, best of a few
runs. In the JSON, ours are milliseconds at a size, the peer is what the smallest size would make of
it if cost grew as the number of samples: a ratio above 1 is growth slower than that.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.common import Result, arguments, report
from controller import learning
from controller.actor import Actor, RunningCall
from controller.call_contents import CallContents
from controller.collector import Collector
from controller.dataset import Position, PromptOrder, Row
from controller.job import Job, Prompt
from controller.journal import Scores
from controller.learning import EngineLimits, PolicyState
from controller.ledger import Ledger
from controller.planning import RolloutPlan, plan_rollout, plan_step
from controller.rebalance import Rebalancer
from controller.requests import RolloutTask, _shard
from controller.rollout import Rollout
from controller.rollout_stats import RolloutStats
from controller.scoring import ScoredSample
from controller.step_batch import make_batch
from controller.timeline import Timeline
from rlhfless.messages import Finished, RolloutDone, Tokens
from rlhfless.spec import JobSpec
from scaling import cost_model, lengths
from scaling.cost_model import CostState
from simulator.clock import run

GROUP = 8
PROMPT_TOKENS = 512
MAX_TOKENS = 4096


@dataclass(frozen=True)
class Size:
    samples: int
    actors: int

    def __str__(self) -> str:
        return f"{self.samples} samples, {self.actors} actors"


SIZES = (Size(512, 16), Size(2048, 64), Size(4096, 256), Size(16_384, 1024))


class World:
    """A job of a size, two steps of which are behind it."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.rng = random.Random(size.samples)
        num_prompts = size.samples // GROUP
        shared = tuple(range(PROMPT_TOKENS // 3))
        self.prompts = [
            Prompt(
                f"prompt {g}",
                Row(f"prompt {g}", {}, f"row {g}"),
                shared
                + tuple(self.rng.randrange(1000) for _ in range(PROMPT_TOKENS - len(shared))),
            )
            for g in range(2 * num_prompts)
        ]
        spec = JobSpec.model_validate(
            {
                "name": "job",
                "model": {"path": "made-up"},
                "dataset": {"path": "made-up.jsonl"},
                "rewards": [{"python": "rewards.py:one"}],
                "rollout": {"max_tokens": MAX_TOKENS, "max_instances": size.actors},
                "algorithm": {"group_size": GROUP},
                "training": {"prompts_per_step": num_prompts, "steps": 100},
            }
        )
        self.job = cast(
            Job,
            SimpleNamespace(
                id="job",
                spec=spec,
                data=SimpleNamespace(
                    prompts=self.prompts, order=PromptOrder(len(self.prompts), 0, True)
                ),
                ledger=Ledger(),
                timeline=Timeline(),
                dispatcher=SimpleNamespace(warm=lambda _: size.actors),
            ),
        )
        self.state = self._learned()
        self.plan = plan_step(self.job, 1, Position())
        self.rollout_plan = self.planned()
        self.lengths = {s.id: self._length() for s in self.plan.samples}

    def _length(self) -> int:
        return min(MAX_TOKENS, 1 + int(self.rng.lognormvariate(6.2, 0.7)))

    def _learned(self) -> PolicyState:
        known = self.prompts[: len(self.prompts) // 2]
        observed = {p.key: [self._length() for _ in range(GROUP)] for p in known}
        return PolicyState(
            engine=EngineLimits(max_batch=64, kv_capacity=400_000, kv_token_bytes=100_000),
            lengths=lengths.update(lengths.LengthState(), observed, MAX_TOKENS),
            costs=cost_model.observe(
                CostState(),
                [
                    cost_model.decode(1000, 32_000, 32_000_000, 20.0),
                    cost_model.decode(1000, 1000, 1_000_000, 15.0),
                    cost_model.prefill(10_000, 1.0),
                    cost_model.training(100_000, 20.0),
                    cost_model.kv_load(10**8, 0.05),
                    cost_model.kv_publish(10**8, 0.05),
                ],
                [("rollout", 10.0)],
            ),
        )

    def planned(self) -> RolloutPlan:
        return plan_rollout(
            self.job.spec, self.plan.samples, self.plan.prompts, self.state, self.size.actors
        )

    def collected(self, share: float = 1.0) -> Collector:
        """All samples after ``share`` of the longest's iterations."""
        collector = Collector(self.plan.samples)
        now = int(share * max(self.lengths.values()))
        for sample, length in self.lengths.items():
            count = min(now, length)
            for start in range(0, count, 256):
                part = min(256, count - start)
                frame = Tokens(
                    samples=[0],
                    starts=[start],
                    counts=[part],
                    tokens=[7] * part,
                    logprobs=bytes(4 * part),
                    version=1,
                )
                collector.tokens([sample], frame)
            if count == length:
                collector.finished([sample], Finished(samples=[0], reasons=["stop"]))
        return collector

    def rollout(self, collector: Collector) -> Rollout:
        """In the middle of which all actors stream."""
        job, task = self.job, RolloutTask(1, 1)
        rollout = Rollout(job, task, collector, cast(Any, None))
        for number, ids in enumerate(self.rollout_plan.assignment):
            actor = Actor(
                job,
                task,
                collector,
                ids,
                f"a{number}",
                rollout.stats,
                cast(Any, None),
                cast(Any, None),
            )
            actor.ended = not actor.left
            contents = CallContents(collector)
            contents.ids = list(ids)
            actor.call = RunningCall(cast(Any, None), contents, began_s=0.0)
            rollout.actors.append(actor)
        return rollout


Part = Callable[[World], Callable[[], object]]
"""Prepares a world and returns what is timed."""


def planning(world: World) -> Callable[[], object]:
    return world.planned


def naming(world: World) -> Callable[[], object]:
    return lambda: plan_step(world.job, 1, Position())


def looking(share: float) -> Part:
    def part(world: World) -> Callable[[], object]:
        rollout = world.rollout(world.collected(share))
        forecasts = [world.rollout_plan.forecasts[p.key] for p in world.plan.prompts]

        rollout.move = _nothing  # type: ignore[method-assign]

        async def looks() -> None:
            rebalancer = Rebalancer(world.job, world.rollout_plan, forecasts, 0.25)
            for _ in range(10):
                await rebalancer(rollout)

        def look() -> None:
            run(looks())

        return look

    return part


async def _nothing(*_: object) -> None:
    pass


def collecting(world: World) -> Callable[[], object]:
    return lambda: world.collected().done()


def scoring_names(world: World) -> Callable[[], object]:
    finished = world.collected().done()
    return lambda: _shard(finished)


def batching(world: World) -> Callable[[], object]:
    finished = world.collected().done()
    scored = [ScoredSample(s, Scores(1.0, [1.0]), None) for s in finished]
    return lambda: make_batch(world.plan, scored)


def learning_from(world: World) -> Callable[[], object]:
    finished = world.collected().done()
    prompt_of = world.plan.prompt_of
    stats = RolloutStats()
    for _ in range(world.size.actors):
        stats.add(
            RolloutDone(
                iterations=1000,
                generated_tokens=10_000,
                context_tokens=10_000_000,
                decode_s=15.0,
                prefill_computed=5000,
                prefill_s=0.5,
            )
        )
    return lambda: learning.learn_rollout(
        world.job, world.rollout_plan, prompt_of, finished, stats, world.state, 0.0, 1.0
    )


PARTS: dict[str, Part] = {
    "plan the rollout": planning,
    "name the samples": naming,
    "ten looks at 5 %": looking(0.05),
    "ten looks at 20 %": looking(0.2),
    "ten looks at 60 %": looking(0.6),
    "collect tokens": collecting,
    "name a scoring call": scoring_names,
    "make the batch": batching,
    "learn": learning_from,
}


def best_ms(work: Callable[[], object], limit_s: float) -> float:
    """Best of at most five runs within about ``limit_s``."""
    began = time.process_time()
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
        if time.process_time() - began > limit_s:
            break
    return 1e3 * best


def measure(sizes: tuple[Size, ...], parts: dict[str, Part], limit_s: float) -> Iterator[Result]:
    worlds = [World(size) for size in sizes]
    for name, part in parts.items():
        first: float | None = None
        for world in worlds:
            ours = best_ms(part(world), limit_s)
            first = ours if first is None else first
            linear = first * world.size.samples / worlds[0].size.samples
            yield Result.time(f"{name}: {world.size}", ours, linear, "ms")


def main() -> None:
    parser = arguments(__doc__ or "", threads=False)
    parser.add_argument(
        "--profile", metavar="PART", choices=PARTS, help="profile one part at the largest size"
    )
    parser.add_argument("--largest", type=int, default=len(SIZES), help="sizes to measure")
    given = parser.parse_args()
    sizes = SIZES[: 2 if given.quick else given.largest]
    if given.profile:
        _profile(given, sizes[-1])
        return
    results = []
    for result in measure(sizes, PARTS, 0.5 if given.quick else 5.0):
        print(result, flush=True)
        results.append(result)
    report(results, given.json)


def _profile(given: argparse.Namespace, size: Size) -> None:
    work = PARTS[given.profile](World(size))
    profile = cProfile.Profile()
    profile.runcall(work)
    pstats.Stats(profile).sort_stats("cumulative").print_stats(30)


if __name__ == "__main__":
    main()
