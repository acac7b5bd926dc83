"""Clients that submit and watchers that stay; in a process of its own.

Submissions come in waves, each client one a wave, all at once. A third of them is sent, cut off
before its answer, and sent again; a third is sent twice at the same time; each with one idempotency
key. Every fifth stream is cut now and then and goes on after its last event, as a client does.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.http import Connection, Pool, Site

CUT_EVERY = 5
"""One stream in so many is cut now and then."""
CUT_AFTER_S = (2.0, 6.0)
_TROUBLES = ("none", "cut", "twice")


@dataclass(frozen=True)
class Plan:
    """``running``: jobs to watch from the start, ``watchers`` streams in all, the others on jobs as
    they are submitted. ``spec``: what is submitted, ``waves`` times by each of ``clients``."""

    service: Site
    running: list[str]
    spec: dict[str, Any]
    clients: int
    waves: int
    watchers: int
    seconds: float
    seed: int = 0


@dataclass
class Stream:
    """What one watcher was told: ids in order, and how long after it happened (seconds, of events
    that happened while it watched)."""

    job: str
    ids: list[str] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    cuts: int = 0


@dataclass
class Traffic:
    """``accepted``: the job of each submission, by idempotency key; ``answers``: how many of its
    requests were answered. ``pages``: ids of all events by job, asked for afterwards."""

    streams: list[Stream] = field(default_factory=list)
    accepted: dict[str, set[str]] = field(default_factory=dict)
    answers: int = 0
    sent: int = 0
    submit_s: list[float] = field(default_factory=list)
    pages: dict[str, list[str]] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    open_at_once: int = 0
    cpu_s: float = 0.0


def run(plan: Plan) -> Traffic:
    """For the plan's time; then all jobs are cancelled, and everything is counted."""
    return asyncio.run(_Run(plan).run())


def submit_all(site: Site, specs: Sequence[dict[str, Any]]) -> list[str]:
    """The jobs made, by a client that has no trouble."""

    async def submit() -> list[str]:
        pool = Pool(site)
        bodies = [json.dumps(spec).encode() for spec in specs]
        made = [(await pool.post("/v1/jobs", body=body))["id"] for body in bodies]
        pool.close()
        return made

    return asyncio.run(submit())


class _Run:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._site = plan.service
        self._pool = Pool(plan.service)
        self._random = random.Random(plan.seed)
        self._found = Traffic()
        self._open = 0

    async def run(self) -> Traffic:
        plan, found = self._plan, self._found
        cpu_s = time.process_time()
        start_s = time.monotonic()
        async with asyncio.TaskGroup() as watching:

            def watch(job: str) -> None:
                number = len(found.streams)
                if number < plan.watchers:
                    found.streams.append(Stream(job))
                    watching.create_task(self._watch(found.streams[-1], number % CUT_EVERY == 0))

            for number in range(plan.watchers // 2):
                watch(plan.running[number % len(plan.running)])
            async with asyncio.TaskGroup() as submitting:
                for client in range(plan.clients):
                    submitting.create_task(self._submit(client, start_s, watch))
            await asyncio.sleep(start_s + plan.seconds - time.monotonic())
            found.seconds = time.monotonic() - start_s
            found.cpu_s = time.process_time() - cpu_s
            async with asyncio.timeout(120):
                await self._cancel()
        await self._count()
        self._pool.close()
        return found

    # --- submitting ---------------------------------------------------------------------------

    async def _submit(self, client: int, start_s: float, accepted: Callable[[str], None]) -> None:
        for wave in range(self._plan.waves):
            due_s = start_s + 1.0 + wave * (self._plan.seconds - 2.0) / self._plan.waves
            await asyncio.sleep(due_s - time.monotonic())
            accepted(await self._submit_one(_TROUBLES[(client + wave) % len(_TROUBLES)]))

    async def _submit_one(self, trouble: str) -> str:
        key = uuid.uuid4().hex
        body = json.dumps(self._plan.spec | {"metadata": {"key": key}}).encode()
        head = f"Idempotency-Key: {key}"
        request = self._site.head("POST", "/v1/jobs", head, body=body)
        if trouble == "cut":
            await self._send_and_leave(request)
        jobs = await asyncio.gather(*(self._send(request) for _ in range(1 + (trouble == "twice"))))
        self._found.accepted[key] = set(jobs)
        return jobs[0]

    async def _send(self, request: bytes) -> str:
        start_s = time.monotonic()
        self._found.sent += 1
        answer = await self._pool.ask(request)
        self._found.submit_s.append(time.monotonic() - start_s)
        self._found.answers += 1
        job = answer.json()["id"]
        assert isinstance(job, str)
        return job

    async def _send_and_leave(self, request: bytes) -> None:
        self._found.sent += 1
        connection = await Connection.to(self._site)
        connection.send(request)
        await asyncio.sleep(self._random.uniform(0.0, 0.05))
        connection.close()

    # --- watching -----------------------------------------------------------------------------

    async def _watch(self, stream: Stream, cut: bool) -> None:
        while True:
            cut_at_s = time.monotonic() + self._random.uniform(*CUT_AFTER_S) if cut else None
            try:
                async with asyncio.timeout(cut_at_s and cut_at_s - time.monotonic()):
                    with self._counted():
                        if await self._follow(stream):
                            return
            except TimeoutError:
                stream.cuts += 1

    async def _follow(self, stream: Stream) -> bool:
        """Until it ends by itself; whether with the event that ends the job."""
        since_ms = time.time() * 1000
        more = [f"Last-Event-ID: {stream.ids[-1]}"] if stream.ids else []
        path = f"/v1/jobs/{stream.job}/events"
        request = self._site.head("GET", path, "Accept: text/event-stream", *more)
        connection = await Connection.to(self._site)
        try:
            async for block in connection.stream(request):
                if not block.startswith(b"id: "):
                    continue  # a comment, or when to come back
                id_ = block[4 : block.index(b"\n")].decode()
                stream.ids.append(id_)
                at_ms = int(id_.partition("-")[0])
                if at_ms > since_ms:
                    stream.delays_s.append(time.time() - at_ms / 1000)
                if b'"state":"cancelled"' in block:
                    return True
        finally:
            connection.close()
        return False

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._open += 1
        self._found.open_at_once = max(self._found.open_at_once, self._open)
        try:
            yield
        finally:
            self._open -= 1

    # --- the end ------------------------------------------------------------------------------

    async def _jobs(self) -> list[str]:
        jobs: list[str] = []
        has_more = True
        while has_more:
            after = f"&after={jobs[-1]}" if jobs else ""
            page = await self._pool.get(f"/v1/jobs?limit=100{after}")
            jobs += [job["id"] for job in page["data"]]
            has_more = page["has_more"]
        return jobs

    async def _cancel(self) -> None:
        self._found.listed = await self._jobs()
        limit = asyncio.Semaphore(10)

        async def cancel(job: str) -> None:
            async with limit:
                await self._pool.post(f"/v1/jobs/{job}/cancel")

        async with asyncio.TaskGroup() as group:
            for job in self._found.listed:
                group.create_task(cancel(job))

    async def _count(self) -> None:
        for job in {stream.job for stream in self._found.streams}:
            ids: list[str] = []
            has_more = True
            while has_more:
                after = f"&after={ids[-1]}" if ids else ""
                page = await self._pool.get(f"/v1/jobs/{job}/events?limit=100{after}")
                ids += [event["id"] for event in page["data"]]
                has_more = page["has_more"]
            self._found.pages[job] = ids
