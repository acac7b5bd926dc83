"""Reads at a fixed rate, in turn of the service and of the peer; in a process of its own.

A request is sent when it is due, whether or not those before it have been answered, and its latency
counts from then: a server that stands still is not asked less often for it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from benchmarks.load.http import Pool, Site

PEER = "empty route"


@dataclass(frozen=True)
class Plan:
    """``paths``: kinds of reads, each with the paths it takes in turn; the peer has one of them
    after each of the service. ``rate``: requests a second to either."""

    service: Site
    peer: Site
    paths: dict[str, list[str]]
    rate: float
    seconds: float


@dataclass
class Read:
    """Seconds by kind; ``late_s``: how late this process itself sent the requests; ``cpu_s``: what
    it took."""

    latencies_s: dict[str, list[float]] = field(default_factory=dict)
    late_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cpu_s: float = 0.0


def read(plan: Plan) -> Read:
    """At the plan's rate, for its time."""
    return asyncio.run(_read(plan))


async def _read(plan: Plan) -> Read:
    loop = asyncio.get_running_loop()
    found = Read({kind: [] for kind in (*plan.paths, PEER)})
    service, peer = Pool(plan.service), Pool(plan.peer)
    empty = plan.peer.head("GET", "/")
    prepared = {
        kind: [plan.service.head("GET", path) for path in paths]
        for kind, paths in plan.paths.items()
    }
    kinds = list(prepared)

    async def one(pool: Pool, kind: str, request: bytes, due_s: float) -> None:
        found.late_s.append(loop.time() - due_s)
        answer = await pool.ask(request)
        found.latencies_s[kind].append(loop.time() - due_s)
        if answer.status != 200:
            found.failed.append(f"{kind}: {answer.status} {answer.body[:200]!r}")

    cpu_s, start_s = time.process_time(), loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(int(plan.seconds * plan.rate)):
            kind = kinds[number % len(kinds)]
            requests = prepared[kind]
            request = requests[number // len(kinds) % len(requests)]
            for half, work in enumerate(((service, kind, request), (peer, PEER, empty))):
                due_s = start_s + (number + half / 2) / plan.rate
                await asyncio.sleep(due_s - loop.time())
                group.create_task(one(*work, due_s))
    found.cpu_s, found.seconds = time.process_time() - cpu_s, loop.time() - start_s
    service.close()
    peer.close()
    return found


@dataclass(frozen=True)
class Rate:
    """Requests answered a second; ``cpu_ms``: what each took of this process."""

    per_s: float
    cpu_ms: float


def saturate(site: Site, paths: list[str], clients: int, seconds: float) -> Rate:
    """As many requests as ``clients`` get answered when each asks again at once."""
    return asyncio.run(_saturate(site, paths, clients, seconds))


async def _saturate(site: Site, paths: list[str], clients: int, seconds: float) -> Rate:
    requests = [site.head("GET", path) for path in paths]
    pool, done = Pool(site), 0
    start_s, cpu_s = time.monotonic(), time.process_time()

    async def ask() -> None:
        nonlocal done
        while time.monotonic() < start_s + seconds:
            answer = await pool.ask(requests[done % len(requests)])
            assert answer.status == 200, answer
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(ask())
    pool.close()
    took_s = time.monotonic() - start_s
    return Rate(done / took_s, 1000 * (time.process_time() - cpu_s) / done)
