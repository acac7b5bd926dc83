"""What a fuzzed job runs in: stores and functions that outlive controllers, and controllers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from controller.books import Books, keeping
from controller.dataset import PromptOrder
from controller.deployments import deployments
from controller.dispatch import Dispatcher, RetryPolicy
from controller.job import Data, Event, Job, Prompt, StepSamples
from controller.journal import Journal
from controller.orchestrator import Orchestrator, Outcome
from controller.timeline import Timeline
from controller.tokenizer import PromptTokenizer
from rlhfless.errors import CapacityError
from rlhfless.messages import SampleTask
from rlhfless.spec import JobSpec
from simulator.fuzz.answers import AnsweringPlatform
from simulator.fuzz.audit import AuditedLedger
from simulator.fuzz.chance import Chance
from simulator.fuzz.expected import Expected
from simulator.fuzz.faults import FaultyPlatform
from simulator.fuzz.functions import Functions
from simulator.fuzz.jobs import SHAPE, make_fuzz_cluster
from simulator.fuzz.journal import FuzzedJournal
from simulator.fuzz.life import Life, current_life
from simulator.fuzz.objects import FuzzedObjects
from simulator.fuzz.schedule import Case
from simulator.fuzz.trace import Trace, Violation
from simulator.memory import MemoryObjects
from simulator.platform import SimulatedPlatform
from simulator.platform.costs import Costs
from simulator.platform.lengths import Responses
from simulator.scenario import Scenario

LOOK_EVERY_S = 0.91
"""How often the ledger is held against what runs."""


class PlainTokenizer(PromptTokenizer):
    """Says tokens as numbers; nothing is loaded."""

    def __init__(self) -> None:
        pass

    def decode(self, responses: Sequence[Sequence[int]], stop: Collection[int] = ()) -> list[str]:  # noqa: ARG002
        return [" ".join(map(str, tokens)) for tokens in responses]


class OwnVersions(MemoryObjects):
    """The object store as the simulated platform sees it. It keeps versions of its own beside
    those of ``Functions``, which know more of how real training makes them."""

    def __init__(self, shared: MemoryObjects) -> None:
        super().__init__()
        self._shared = shared

    def get(self, name: str) -> bytes:
        return super().get(name) if name.startswith("weights/") else self._shared.get(name)


@dataclass
class Run:
    """A controller at work: its life, and what is its own."""

    life: Life
    spec: JobSpec
    ledger: AuditedLedger
    platform: SimulatedPlatform
    faulty: FaultyPlatform
    began_s: float
    buried: bool = False
    outcome: Outcome | None = None
    error: BaseException | None = None


class World:
    """Of a case. ``journal`` is shared by all controllers."""

    def __init__(self, case: Case, journal: Journal, trace: Trace) -> None:
        self.case = case
        self.trace = trace
        self.journal = journal
        self.objects = MemoryObjects()
        self.events: list[Event] = []
        self.runs: list[Run] = []
        rng = random.Random(f"chance {case.seed}")
        self.chance = Chance(rng, case.rates, case.budget, trace)
        everything = (*case.prompts, *case.evaluation)
        group = case.spec.algorithm.group_size
        self._responses = Responses(case.lengths, everything, group)
        self.expected = Expected(case.spec, self.data(), self._length)
        self.functions = Functions(self.expected, self.objects, trace)
        self._versions = OwnVersions(self.objects)
        self._cluster = make_fuzz_cluster(case.nodes, case.sharing, case.spot, case.straggler)
        self._scenario = Scenario(
            case.prompts, case.evaluation, case.lengths, SHAPE, case.measurements
        )

    def data(self) -> Data:
        """Read anew by every controller."""
        spec = self.case.spec
        return Data(
            tokenizer=PlainTokenizer(),
            stop_token_ids=[2],
            prompts=list(self.case.prompts),
            order=PromptOrder(len(self.case.prompts), spec.seed, spec.dataset.shuffle),
            evaluation=list(self.case.evaluation),
        )

    def _length(self, step: int, prompt: Prompt, name: str, most: int) -> int:
        task = SampleTask(id=name, prompt=0, seed=0, max_tokens=most)
        keys = self._responses.keys([prompt.tokens])
        return self._responses.lengths(step, keys, [task])[0]

    # --- controllers ------------------------------------------------------------------------------

    def begin(self, spec: JobSpec, kill_at: int = 0) -> Run:
        """A controller begins to run, or go on with, the job."""
        number = len(self.runs)
        life = Life(number, self.trace, kill_at)
        prices = {d.function: d.price_usd_per_hour for d in deployments(spec)}
        ledger = AuditedLedger(prices)
        platform = SimulatedPlatform(
            deployments(spec),
            self._cluster,
            Costs(spec, self._cluster, self._scenario),
            self._responses,
            self._versions,
            ledger,
            seed=self.case.seed + number,
        )
        faulty = FaultyPlatform(AnsweringPlatform(platform, self.functions), life, self.chance)
        now_s = asyncio.get_running_loop().time()
        run = Run(life, spec, ledger, platform, faulty, now_s)
        self.runs.append(run)
        self.trace.note(f"[{number}] BEGINS")
        life.task = asyncio.get_running_loop().create_task(
            self._live(run), name=f"controller-{number}"
        )
        return run

    async def _live(self, run: Run) -> None:
        """As ``controller.local_run.run_local``; ends with an outcome or an error in ``run``."""
        current_life.set(run.life)
        try:
            run.outcome = await self._drive(run)
        except (Exception, asyncio.CancelledError) as error:  # the task's boundary
            run.error = error
        finally:
            run.life.ended.set()

    async def _drive(self, run: Run) -> Outcome:
        case, life = self.case, run.life
        journal = FuzzedJournal(self.journal, life, self.chance, run.faulty.witness)
        try:
            notes = await journal.notes()
            books = Books(run.ledger, notes, run.began_s)
            async with keeping(books, journal):
                for function in run.spec.functions():
                    await run.faulty.scale(function, 1)
                timeline = Timeline()
                retries = random.Random(f"retries {case.seed} {life.number}")
                job = Job(
                    id="job",
                    spec=run.spec,
                    data=self.data(),
                    objects=FuzzedObjects(self.objects, life, self.chance),
                    journal=journal,
                    dispatcher=Dispatcher(run.faulty, timeline, retries, RetryPolicy()),
                    timeline=timeline,
                    ledger=run.ledger,
                    books=books,
                    observe=lambda event: self._observe(life, event),
                    keep_samples=partial(self._keep_samples, life),
                )
                return await Orchestrator(job, "weights").run()
        finally:
            if life.alive:
                await run.platform.close()

    def _observe(self, life: Life, event: Event) -> None:
        if life.alive:
            self.trace.note(f"[{life.number}] {event.kind}", event.message)
            self.events.append(event)

    def _keep_samples(self, life: Life, kept: StepSamples) -> None:
        life.cross("keep_samples", kept.step)
        if self.chance.strikes("samples_full", kept.step):
            raise CapacityError("cannot write the samples: no space left")
        names = [sample.id for sample in kept.samples]
        if names != [sample.id for sample in self.expected.steps[kept.step]]:
            raise Violation(f"the samples of step {kept.step} are {names}")
        for sample in kept.samples:
            expected = self.expected.by_id[sample.id]
            scores = kept.scores[sample.id]
            if scores.parts != self.expected.scores(expected):
                raise Violation(f"{sample.id} has scores {scores}")
            if sample.versions != [expected.version, expected.length]:
                raise Violation(f"{sample.id} was generated by {sample.versions}")
