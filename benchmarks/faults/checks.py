"""What must hold of every job when all is over. Each check tells what is wrong, in words."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from benchmarks.faults.lives import Life
from benchmarks.faults.place import STEPS, TENANTS, Place
from controller.service.states import may_follow
from rlhfless import AsyncClient, rest

CLOSE_S = 0.01
"""Sums of rounded seconds agree so closely."""
SETTLED_S = 30


class Checks:
    """Of all jobs, on a service at peace."""

    def __init__(self, place: Place, lives: Sequence[Life]) -> None:
        self._place = place
        self._lives = lives
        self.states: Counter[str] = Counter()
        self.steps = 0
        self.events = 0
        self.held_s = 0.0

    async def wrong(self) -> list[str]:
        found = [f"{life.name}: {what}" for life in self._lives for what in life.wrong]
        for tenant in TENANTS:
            async with self._place.client(tenant) as client:
                listed = {job.id: job async for job in client.jobs.list()}
                found += self._nothing_lost(tenant, listed)
                booked = 0.0
                for job in listed.values():
                    seen, held_s = await self._job(client, job)
                    found += [f"{job.name} ({job.id}): {what}" for what in seen]
                    booked += held_s
                self.held_s += booked
                found += await _charged(client, tenant, booked, CLOSE_S * max(1, len(listed)))
        return found

    def _nothing_lost(self, tenant: str, listed: dict[str, rest.Job]) -> Iterator[str]:
        names = Counter(job.name for job in listed.values())
        for life in self._lives:
            if life.tenant != tenant:
                continue
            if life.job is not None and life.job not in listed:
                yield f"{life.name}: the accepted job {life.job} is lost"
            if names[life.name] > 1:
                yield f"{life.name}: submitted once, and there are {names[life.name]} jobs"

    async def _job(self, client: AsyncClient, job: rest.Job) -> tuple[list[str], float]:
        """What is wrong with a job, and the function-seconds of its books."""
        life = next((life for life in self._lives if life.name == job.name), None)
        if life is None:
            return ["nobody submitted it"], 0.0
        self.states[job.state] += 1
        events = [event async for event in client.jobs.events(job.id, follow=False)]
        self.events += len(events)
        told = [event.data["step"] for event in events if event.type == "step"]
        self.steps += len(told)
        metrics = [one.step async for one in client.jobs.metrics(job.id)]
        usage = await client.jobs.usage(job.id)
        spans = [span async for span in client.jobs.timeline(job.id)]
        wrong = [
            *state(life, job),
            *stream(life, job, events),
            *steps(job, told, metrics),
            *books(usage, spans),
        ]
        return wrong, usage.total.held_s


async def _charged(client: AsyncClient, tenant: str, booked: float, about: float) -> list[str]:
    """What a replica could not charge before it died, another does in a while."""
    for _ in range(SETTLED_S):
        used = (await client.tenant()).function_seconds
        if abs(used - booked) <= about:
            return []
        await asyncio.sleep(1.0)
    return [
        f"tenant {tenant} is charged {used:.3f} function-seconds, and its jobs' books say "
        f"{booked:.3f}"
    ]


def state(life: Life, job: rest.Job) -> Iterator[str]:
    allowed = {"succeeded", "cancelled"} if life.asked_to_cancel else {"succeeded"}
    if job.state not in allowed:
        yield f"is {job.state}, {job.reason} (its owner: {life.fate})"


def stream(life: Life, job: rest.Job, events: Sequence[rest.Event]) -> Iterator[str]:
    """What its watcher was told is what there is, and the states told follow one another."""
    if life.job is not None and job.state in rest.FINAL:
        known = [event.id for event in events]
        if life.seen != known:
            doubled = [id_ for id_, times in Counter(life.seen).items() if times > 1]
            lost = [e.message for e in events if e.id not in set(life.seen)]
            extra = sorted(set(life.seen) - set(known))
            yield f"its watcher missed {lost}, was told twice {doubled}, and of no event {extra}"
    states = [event.data["state"] for event in events if event.type == "state"]
    if states[:1] != ["queued"] or states[-1] != job.state:
        yield f"is {job.state}, and its events tell {states}"
    for old, new in pairwise(states):
        if old == new or not may_follow(old, new):
            yield f"became {new} after {old}: {states}"


def steps(job: rest.Job, told: list[int], metrics: list[int]) -> Iterator[str]:
    if told != list(range(1, len(told) + 1)):
        yield f"its events tell the steps {told}"
    if metrics != told:
        yield f"its metrics are of the steps {metrics}, its events tell {told}"
    if job.progress.steps_done != len(told):
        yield f"its document says {job.progress.steps_done} steps, its events {len(told)}"
    if job.state == "succeeded" and len(told) != STEPS:
        yield f"succeeded after {len(told)} steps"


def books(usage: rest.Usage, spans: Sequence[rest.Span]) -> Iterator[str]:
    """Held seconds are busy, idle and cold ones, of each function and in all; steps take no more
    than the whole; no instance is booked twice at one moment."""
    by_step: Counter[str] = Counter()
    for step in usage.data:
        for function, spent in step.functions.items():
            by_step[function] += spent.held_s  # type: ignore[assignment]
    for name, spent in {"all": usage.total, **usage.functions}.items():
        if abs(spent.held_s - spent.busy_s - spent.idle_s - spent.cold_s) > CLOSE_S:
            yield f"holds {spent.held_s} s of {name}, in phases {spent}"
        if min(spent.busy_s, spent.idle_s, spent.cold_s) < 0:
            yield f"has negative seconds of {name}: {spent}"
        if name != "all" and by_step[name] > spent.held_s + CLOSE_S:
            yield f"its steps took {by_step[name]} s of {name}, all of it {spent.held_s} s"
    whole = sum(spent.held_s for spent in usage.functions.values())
    if abs(whole - usage.total.held_s) > CLOSE_S:
        yield f"its functions' books add up to {whole} s, in all they say {usage.total.held_s} s"
    by_instance: dict[str, list[rest.Span]] = defaultdict(list)
    for span in spans:
        by_instance[span.instance].append(span)
    for instance, lived in by_instance.items():
        for one, after in pairwise(sorted(lived, key=lambda span: span.start_at)):
            if one.end_at is None or after.start_at < one.end_at - CLOSE_S:
                yield f"{instance} was {one.phase} and {after.phase} at once"
    if any(span.end_at is None for span in spans):
        yield "has spans that never end"
