"""A job's world on virtual time: real controller, real stores, scripted functions."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fakeredis

from controller.books import Books
from controller.dataset import PromptOrder, Row
from controller.dispatch import Dispatcher, RetryPolicy
from controller.job import Data, Event, Job, Prompt
from controller.job_store import JobStore
from controller.ledger import Ledger
from controller.orchestrator import Orchestrator, Outcome
from controller.timeline import Timeline
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec
from tests.support.scripted_platform import Faults, ScriptedPlatform

STEPS = 3


class PlainTokenizer:
    def decode(self, responses: list[list[int]], stop: list[int]) -> list[str]:
        return [" ".join(map(str, tokens)) for tokens in responses]


def make_spec(**changes: Any) -> JobSpec:
    raw: dict[str, Any] = {
        "name": "job",
        "seed": 1,
        "model": {"path": "tiny"},
        "dataset": {"path": "train.jsonl"},
        "evaluation": {"dataset": {"path": "eval.jsonl"}},
        "rewards": [{"python": "rewards.py:odd"}],
        "rollout": {"max_tokens": 64, "max_instances": 3},
        "algorithm": {"group_size": 4, "kl": {"coefficient": 0.1}},
        "training": {"prompts_per_step": 4, "steps": STEPS, "checkpoint_every": 2},
    }
    for key, value in changes.items():
        raw[key] = raw.get(key, {}) | value if isinstance(value, dict) else value
    return JobSpec.model_validate(raw)


@dataclass
class World:
    """What outlives a controller: the stores and the functions."""

    folder: Path
    platform: ScriptedPlatform
    server: fakeredis.FakeServer
    spec: JobSpec
    events: list[Event]

    def job(self) -> Job:
        prompts = [
            Prompt(f"p{i}", Row(f"prompt {i}", {}, f"row {i}"), (10 + i, 3)) for i in range(6)
        ]
        timeline = Timeline()
        ledger = Ledger()
        return Job(
            id="job",
            spec=self.spec,
            data=Data(
                tokenizer=PlainTokenizer(),  # type: ignore[arg-type]
                stop_token_ids=[2],
                prompts=prompts,
                order=PromptOrder(len(prompts), self.spec.seed, True),
                evaluation=prompts[:3],
            ),
            objects=ObjectStore(str(self.folder)),
            journal=JobStore(fakeredis.FakeAsyncRedis(server=self.server), "job"),
            dispatcher=Dispatcher(
                self.platform, timeline, random.Random(0), RetryPolicy(attempts=8)
            ),
            timeline=timeline,
            ledger=ledger,
            books=Books(ledger, {}, asyncio.get_running_loop().time()),
            observe=self.events.append,
        )

    async def live(self, for_s: float = float("inf")) -> Outcome | None:
        """Run one controller; None if it is killed after ``for_s`` seconds."""
        orchestrator = Orchestrator(self.job(), "weights")
        try:
            async with asyncio.timeout(None if for_s == float("inf") else for_s):
                return await orchestrator.run()
        except TimeoutError:
            return None


def world(folder: Path, spec: JobSpec | None = None, **faults: float) -> World:
    seed = int(faults.pop("seed", 0))
    return World(
        folder,
        ScriptedPlatform(Faults(random.Random(seed), **faults)),
        fakeredis.FakeServer(),
        spec or make_spec(),
        [],
    )
