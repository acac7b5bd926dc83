"""A job on many simulated accelerators: what it costs the controller, and what it moves.

The controller is the real one: orchestrator, planning, collector, rebalancing, scoring, journal.
Every request is encoded and every frame is decoded, as on a wire; what the platform, the functions
and the virtual cluster cost is booked apart (``benchmarks.large.meter``). Left out is what lies
between frames and sockets (``benchmarks.large.wire``) and Redis (``benchmarks.large.journal``).
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec

from benchmarks.large.meter import Collections, Meter, MeteredLoop
from controller import generate, planning, step
from controller.books import Books
from controller.collecting import collect_rarely
from controller.collector import FinishedSample
from controller.dataset import PromptOrder
from controller.deployments import deployments
from controller.dispatch import Dispatcher, RetryPolicy
from controller.job import Data, Event, Job
from controller.journal import Scores, StepRecord
from controller.ledger import Ledger
from controller.orchestrator import Orchestrator
from controller.platforms.base import Instance
from controller.timeline import Timeline
from controller.tokenizer import PromptTokenizer
from rlhfless.frames import FrameReader, encode_frame, encode_request
from rlhfless.messages import ROUTES, AnyFrame, FunctionName, Request, SteerRequest, Tokens
from rlhfless.spec import JobSpec
from simulator.cluster import Cluster, make_cluster
from simulator.memory import MemoryJournal, MemoryObjects
from simulator.platform import SimulatedPlatform
from simulator.platform.costs import Costs
from simulator.platform.lengths import Responses
from simulator.scenario import Scenario
from simulator.scenario_file import make_scenario
from simulator.workload_file import parse_workload

GROUP = 8
PROMPT_TOKENS, MAX_TOKENS = 512, 2048
WORKLOAD = {
    "prompt_tokens": PROMPT_TOKENS,
    "lengths": {"median": 512, "between": 0.5, "within": 0.4},
}
PER_NODE = 8
TRAINERS = PER_NODE, 64
"""Ranks of training: as many as actors, within these."""
_SPREAD = 600
"""Token ids of a simulation are small; times this they are as large as real ones, and as costly."""


@dataclass(frozen=True)
class Size:
    """``actors`` of one accelerator each, and samples a step."""

    actors: int
    samples: int
    steps: int = 4


@dataclass
class Counted:
    """Since the job began. ``bytes_in`` come from functions, ``bytes_out`` go to them."""

    calls: Counter[str] = field(default_factory=Counter)
    frames: Counter[str] = field(default_factory=Counter)
    bytes_in: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Mark:
    """Where everything stood at the end of a step. CPU seconds; ``now_s`` is virtual."""

    now_s: float
    cpu_s: float
    platform_s: float
    collecting_s: float
    planning_s: float
    events: int
    counted: Counted
    record: StepRecord


class _Carrying:
    """The platform as the controller meets it, whose every byte is counted."""

    def __init__(self, inner: SimulatedPlatform, meter: Meter, counted: Counted) -> None:
        self._inner = inner
        self._meter = meter
        self._counted = counted

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        function = self._sent(request)
        reader = FrameReader()
        meter, frames = self._meter, self._inner.invoke(request)
        try:
            while (frame := await meter.timed(anext(frames, None))) is not None:
                raw = meter.call(_encoded, frame)
                self._counted.frames[type(frame).__name__] += 1
                self._counted.bytes_in[function] += len(raw)
                for arrived in reader.feed(raw):
                    yield arrived
        finally:
            await meter.timed(frames.aclose())

    async def steer(self, request: SteerRequest) -> bool:
        self._sent(request)
        return await self._meter.timed(self._inner.steer(request))

    async def scale(self, function: FunctionName, count: int) -> None:
        await self._meter.timed(self._inner.scale(function, count))

    def instances(self) -> tuple[Instance, ...]:
        return self._inner.instances()

    async def close(self) -> None:
        await self._meter.timed(self._inner.close())

    def _sent(self, request: Request) -> str:
        _, path = ROUTES[type(request)]
        function = path.removeprefix("/v1/")
        self._counted.calls[function] += 1
        self._counted.bytes_out[function] += len(encode_request(request))
        return function


def _encoded(frame: AnyFrame) -> bytes:
    if isinstance(frame, Tokens):
        frame = msgspec.structs.replace(frame, tokens=[_SPREAD * each for each in frame.tokens])
    return encode_frame(frame)


class _Journal(MemoryJournal):
    """Encodes what it is given as the one in Redis does, and counts it."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self._counted = counted

    async def add_samples(self, step: int, samples: Iterable[FinishedSample]) -> None:
        samples = list(samples)
        self._note("samples", [msgspec.msgpack.encode(sample) for sample in samples])
        await super().add_samples(step, samples)

    async def add_scores(self, step: int, scores: Mapping[str, Scores]) -> None:
        self._note("scores", [msgspec.msgpack.encode(score) for score in scores.values()])
        await super().add_scores(step, scores)

    async def add_reference(self, step: int, logprobs: Mapping[str, bytes]) -> None:
        self._note("reference", list(logprobs.values()))
        await super().add_reference(step, logprobs)

    async def commit(self, record: StepRecord, policy_state: bytes, **notes: Any) -> None:
        self._note("commit", [msgspec.json.encode(record), policy_state])
        await super().commit(record, policy_state, **notes)

    def _note(self, part: str, values: list[bytes]) -> None:
        self._counted.writes[part] += 1
        self._counted.written[part] += sum(map(len, values))


class _Objects(MemoryObjects):
    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self._counted = counted

    def put(self, name: str, data: bytes, *, durable: bool = False) -> None:
        self._counted.stored[name.split("/")[0]] += len(data)
        super().put(name, data, durable=durable)


class _NoText:
    def decode(self, responses: Any, stop: Any) -> list[str]:  # noqa: ARG002
        return [""] * len(responses)


def make_spec(size: Size) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "scale",
            "model": {"path": "Qwen2.5-7B", "dtype": "bfloat16"},
            "dataset": {"path": "nowhere.jsonl"},
            "rewards": [{"python": "rules.py:score"}],
            "algorithm": {"name": "grpo", "group_size": GROUP},
            "rollout": {
                "max_tokens": MAX_TOKENS,
                "max_instances": size.actors,
                "accelerator": "cuda",
                "idle_timeout_s": 600,
            },
            "reward": {"max_instances": 16, "idle_timeout_s": 600},
            "training": {
                "prompts_per_step": size.samples // GROUP,
                "steps": size.steps,
                "accelerator": "cuda",
                "idle_timeout_s": 600,
            },
            "objective": {"time_weight": 1.0},
        }
    )


def run(size: Size, *, each: bool = False) -> list[Mark]:
    """A mark for the beginning and for each step. ``each``: as it would be if every engine told its
    tokens when it likes, every 50 ms, and every write to the job store were one by itself.

    Actors and trainers have accelerators of their own. The object store is fast, as S3 is for many
    nodes at once, and weights are read once a node: else the controller had nothing to do but wait.
    """
    collect_rarely()
    if each:
        generate.FRAMES_PER_S, step.KEEP_S = 10**9, 0.0  # type: ignore[misc]
    spec = make_spec(size)
    ranks = max(TRAINERS[0], min(size.actors, TRAINERS[1]))
    nodes = -(-size.actors // PER_NODE) + -(-ranks // PER_NODE)
    cluster = make_cluster(
        {
            "pools": {"gpus": {"accelerator": "H100", "per_node": PER_NODE, "nodes": nodes}},
            "placements": {"training": {"data_parallel": ranks}},
            "object_store": {"gb_per_s": 200, "node_cache": True},
            "sharing": "exclusive",
        }
    )
    prompts = {**WORKLOAD, "prompts": max(2 * size.samples // GROUP, 64)}
    scenario = make_scenario(spec, given=parse_workload(prompts))
    meter, plans = Meter(), Meter()
    planning.plan_rollout = partial(plans.call, planning.plan_rollout)  # type: ignore[misc]
    with Collections() as collections, asyncio.Runner(loop_factory=lambda: MeteredLoop(meter)) as r:
        return r.run(_run(spec, cluster, scenario, meter, plans, collections))


async def _run(
    spec: JobSpec,
    cluster: Cluster,
    scenario: Scenario,
    meter: Meter,
    plans: Meter,
    collections: Collections,
) -> list[Mark]:
    loop = cast(MeteredLoop, asyncio.get_running_loop())
    counted, ledger, timeline = Counted(), Ledger(), Timeline()
    objects = _Objects(counted)
    responses = Responses(scenario.workload, scenario.prompts, GROUP)
    costs = Costs(spec, cluster, scenario)
    platform = SimulatedPlatform(
        deployments(spec), cluster, costs, responses, objects, ledger, tells=True
    )
    carrying = _Carrying(platform, meter, counted)
    marks: list[Mark] = []

    def observe(event: Event) -> None:
        if event.kind == "step" or (event.kind == "rollout" and not marks):
            marks.append(
                Mark(
                    loop.time(),
                    time.process_time(),
                    meter.cpu_s,
                    collections.cpu_s,
                    plans.cpu_s,
                    loop.events,
                    deepcopy(counted),
                    event.data.get("record"),  # type: ignore[arg-type]
                )
            )

    job = Job(
        id="scale",
        spec=spec,
        data=Data(
            tokenizer=cast(PromptTokenizer, _NoText()),
            stop_token_ids=[0],
            prompts=list(scenario.prompts),
            order=PromptOrder(len(scenario.prompts), spec.seed, spec.dataset.shuffle),
            evaluation=[],
        ),
        objects=objects,
        journal=_Journal(counted),
        dispatcher=Dispatcher(carrying, timeline, random.Random(0), RetryPolicy()),
        timeline=timeline,
        ledger=ledger,
        books=Books(ledger, {}, loop.time()),
        observe=observe,
    )
    try:
        await Orchestrator(job, "weights").run()
    finally:
        await carrying.close()
    return marks


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
