"""Faults: a service whose replicas, functions, Redis, network and disks fail at random.

    python -m benchmarks.service_faults [--quick] [--seconds S] [--seed N] [--only KIND]

Replicas (``rlhfless serve``) share one folder and one Redis with an append-only file. Clients of
two tenants keep short jobs open all the while, through a balancer before the replicas; some they
pause and resume, some they cancel; each job's events are watched on streams that are cut and
resumed. When the time is over and every job has ended, it is checked that

- no accepted job is lost or there twice, and each ended as its owner wanted,
- every step was done once: in events, metrics, weight versions and the optimizer's own count, and
  jobs of one spec learned the same to the last bit, whatever befell them,
- the books add up: held = busy + idle + cold seconds, functions and steps against the whole, the
  tenants' charges against their jobs, no instance booked twice at one moment,
- no event is lost or told twice,
- nothing is left running when the replicas were told to end.

Exits with 1 and a list if something is wrong. The seed decides which faults come when; what they
hit depends on how fast the machine is, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import common
from benchmarks.faults.checks import Checks
from benchmarks.faults.kinds import Faults
from benchmarks.faults.lives import Lives
from benchmarks.faults.place import Place
from benchmarks.faults.processes import functions, ours
from benchmarks.faults.takeovers import Takeover, Takeovers
from benchmarks.faults.weights import Weights

REPLICAS = 3
CALM_S = 300.0
"""Once nothing fails any more, open jobs must end within this time."""
GONE_S = 15.0
INSTANCES_A_JOB = 3


async def measure(place: Place, options: argparse.Namespace) -> tuple[list[str], dict[str, object]]:
    """What is wrong, and what was measured."""
    rng = random.Random(options.seed)
    start_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - start_s:7.1f} s  {what}", flush=True)

    if not place.data_disk.mounted:
        say("full disks are left out: mounting small ones needs privileges")
    async with place.redis.client() as redis, asyncio.TaskGroup() as group:
        takeovers = Takeovers(redis)
        weights = Weights(place.store)
        lives = Lives(place, options.jobs, weights, random.Random(rng.random()))
        faults = Faults(place, takeovers, random.Random(rng.random()), say)
        background = [
            group.create_task(takeovers.run()),
            group.create_task(_told(lives, place, say)),
        ]
        living = group.create_task(lives.run())
        await asyncio.sleep(options.calm)
        await faults.run(options.seconds, options.only)
        say("nothing fails any more")
        lives.no_more()
        await asyncio.wait({living}, timeout=CALM_S)
        wrong = list(faults.wrong)
        if not living.done():
            wrong += await _stuck(place)
            living.cancel()
        for task in background:
            task.cancel()
    say("all jobs have ended; checking")
    checks = Checks(place, lives.all)
    wrong += await checks.wrong()
    wrong += weights.uneven()
    wrong += await _closed(place)
    alone = [one for one in takeovers.done if faults.alone(one)]
    print(_report(lives, faults, checks, takeovers.done, alone))
    facts = {
        "seed": options.seed,
        "faults": dict(faults.done),
        "jobs": len(lives.all),
        "states": dict(checks.states),
        "takeovers": [{k: v for k, v in asdict(one).items() if k != "fence"} for one in alone],
    }
    return wrong, facts


async def _told(lives: Lives, place: Place, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(30.0)
        there = await asyncio.to_thread(functions, place.mark)
        made, ended = len(lives.all), lives.ended
        say(f"{made} jobs so far, {ended} ended; {len(there)} functions")


async def _stuck(place: Place) -> list[str]:
    found = []
    for tenant in place.keys:
        async with place.client(tenant) as client:
            async for job in client.jobs.list():
                if job.finished_at is None:
                    events = [e.message async for e in client.jobs.events(job.id, follow=False)]
                    found.append(
                        f"{job.name} ({job.id}) is {job.state} after {CALM_S:g} s of peace, "
                        f"{job.progress.steps_done} steps; {job.reason}; {events[-6:]}"
                    )
    return found or ["a watcher goes on though every job has ended"]


async def _closed(place: Place) -> list[str]:
    """Replicas end when they are told to, and leave nothing behind."""
    codes = await asyncio.gather(*(replica.stop() for replica in place.replicas))
    wrong = [f"a replica ended with {code}" for code in codes if code != 0]
    give_up = time.monotonic() + GONE_S
    while left := [n for pid, n in ours(place.mark).items() if pid != place.redis.pid]:
        if time.monotonic() > give_up:
            wrong.append(f"left running: {left}")
            break
        await asyncio.sleep(0.2)
    if folders := [path.name for path in place.tmp.iterdir()]:
        wrong.append(f"left in TMPDIR: {folders}")
    for replica in place.replicas:
        text = replica.log.read_text(errors="replace")
        wrong += [
            f"replica {replica.number} met a defect: {line}"
            for line in text.splitlines()
            if "met a defect" in line
        ]
        if "Traceback" in text:
            wrong.append(f"replica {replica.number} wrote a traceback, see {replica.log}")
    return wrong


def _report(
    lives: Lives,
    faults: Faults,
    checks: Checks,
    takeovers: Sequence[Takeover],
    alone: Sequence[Takeover],
) -> str:
    cuts = sum(life.cuts for life in lives.all)
    lines = [
        "",
        f"faults     {', '.join(f'{name} {n}' for name, n in sorted(faults.done.items()))}",
        f"jobs       {len(lives.all)}: {', '.join(f'{n} {s}' for s, n in checks.states.items())}",
        f"steps      {checks.steps}",
        f"events     {checks.events}, on streams hung up {cuts} times",
        f"booked     {checks.held_s:.0f} function-seconds",
        "",
        f"{'a job whose replica was':<26} {'jobs':>5} {'driven again after s':>28} "
        f"{'next step after s':>20}",
        f"{'':<26} {'':>5} {'median':>18} {'worst':>9} {'median':>10} {'worst':>9}",
    ]
    kinds = sorted({one.kind for one in alone})
    lines += [_line(kind, [one for one in alone if one.kind == kind]) for kind in kinds]
    if len(takeovers) > len(alone):
        others = [one for one in takeovers if one not in alone]
        lines.append(_line("lost among other faults", others))
    return "\n".join([*lines, ""])


def _line(name: str, found: Sequence[Takeover]) -> str:
    taken = [one.taken_s for one in found if one.taken_s is not None]
    steps = [one.step_s for one in found if one.step_s is not None] or [float("nan")]
    return (
        f"{name:<26} {len(found):5} {statistics.median(taken):18.1f} {max(taken):9.1f} "
        f"{statistics.median(steps):10.1f} {max(steps):9.1f}"
    )


async def _main(folder: Path, options: argparse.Namespace) -> tuple[list[str], dict[str, object]]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with Place(
        folder,
        replicas=REPLICAS,
        instances=INSTANCES_A_JOB * options.jobs,
        pause_s=options.pause,
        rng=random.Random(options.seed),
    ) as place:
        return await measure(place, options)


def main(options: argparse.Namespace) -> int:
    options.jobs = options.jobs or (6 if options.quick else 20)
    options.seconds = options.seconds or (60.0 if options.quick else 600.0)
    folder = Path(tempfile.mkdtemp(prefix="bench-faults-"))
    print(f"seed {options.seed}, {options.jobs} jobs, {options.seconds:g} s; logs in {folder}")
    wrong, facts = asyncio.run(_main(folder, options))
    common.report([], options.json, **facts)
    if wrong:
        print(f"WRONG, with --seed {options.seed} (logs in {folder}):")
        print("\n".join(f"- {one}" for one in wrong))
        return 1
    print(f"all as it should be (seed {options.seed})")
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    parser = common.arguments("Faults: a service that is failed at random.", threads=False)
    parser.add_argument("--seconds", type=float, help="how long faults go on")
    parser.add_argument("--seed", type=int, default=0, help="which faults come when")
    parser.add_argument("--jobs", type=int, help="open all the while")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds a reward takes")
    parser.add_argument("--calm", type=float, default=5.0, help="seconds before the first fault")
    parser.add_argument("--only", help="only faults with this in their name")
    sys.exit(main(parser.parse_args()))
