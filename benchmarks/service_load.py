"""A replica of the service under load: reads beside an empty route, submissions, event streams.

    python -m benchmarks.service_load [--quick] [--json FILE]

``rlhfless serve`` over a ``redis-server``, all real, over HTTP. While jobs run (real ones, very
small, whose rewards wait so that they do not take all of the machine), clients submit more in waves
and watchers follow event streams; beside it a fixed rate of reads goes, in turn, to the service and
to an empty FastAPI route which another process serves. Stated are the latencies' 99th percentiles
as ratios to the empty route's, so here a small ratio is good.

Everything is counted: each submission must have made one job, whatever happened to its requests,
and each stream must have told every event of its job, once and in order; else the benchmark fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks import common
from benchmarks.load import reads, report, traffic
from benchmarks.load.place import Place, interruptible, job

RUNNING = 20
CLIENTS = 50
WAVES = 4
STREAMS = 200
RATE = 80.0
"""Reads a second of the service, and as many of the peer."""
PAUSE_S = 5.0
LONG = 100_000
"""Steps of a job that does not end by itself."""
SETTLE_S = 600.0
AT_ONCE = 16
"""Clients when the most requests a second are looked for."""


def measure(place: Place, options: argparse.Namespace) -> report.Found:
    """Exits if anything was lost, doubled or refused."""
    seconds, site = options.seconds, place.site
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        specs = [job(f"runs-{number}", LONG) for number in range(options.running)]
        running = pool.submit(traffic.submit_all, site, specs).result()
        print(f"{len(running)} jobs run after {_settled(place, running):.0f} s", flush=True)
        paths = {
            "GET job": [f"/v1/jobs/{one}" for one in running],
            "GET list": ["/v1/jobs?limit=20"],
            "GET metrics": [f"/v1/jobs/{one}/metrics?limit=20" for one in running],
            "GET events": [f"/v1/jobs/{one}/events?limit=20" for one in running],
            "GET healthz": ["/healthz"],
        }
        sites = {kind: (site, asked) for kind, asked in paths.items()}
        sites[reads.PEER] = place.peer_site, ["/"]
        rates = {
            kind: pool.submit(reads.saturate, *where, AT_ONCE, options.saturate_s).result()
            for kind, where in sites.items()
        }
        clients = traffic.Plan(
            service=site,
            running=running,
            spec=job("waits", steps=2),
            clients=CLIENTS,
            waves=WAVES,
            watchers=STREAMS,
            seconds=seconds,
        )
        before, start_s = _cpu(place), time.monotonic()
        busy = pool.submit(traffic.run, clients)
        time.sleep(1.0)
        asked = reads.Plan(site, place.peer_site, paths, options.rate, seconds - 2.0)
        read = pool.submit(reads.read, asked).result()
        took_s = time.monotonic() - start_s
        cores = {name: (spent - before[name]) / took_s for name, spent in _cpu(place).items()}
        costs = report.Costs(
            cores=cores,
            replica_mib=place.replica.rss_mib(),
            redis_mib=place.redis.rss_mib(),
            redis_connections=len(place.client.client_list()) - 1,
            functions=place.functions(),
        )
        found = report.Found(read, rates, busy.result(), costs)
    print(report.table(found))
    if wrong := [*read.failed[:5], *_wrong(found.traffic, running)]:
        sys.exit("\n".join([*(f"WRONG: {one}" for one in wrong), place.said()]))
    print("             one job a submission; no event lost, none doubled")
    return found


def _settled(place: Place, jobs: Sequence[str]) -> float:
    """Waits until all jobs have made two steps; seconds that took."""
    start_s = time.monotonic()
    keys = [f"rlhfless:{{{one}}}:committed" for one in jobs]
    while time.monotonic() < start_s + SETTLE_S:
        if all(int(steps or 0) >= 2 for steps in place.client.mget(keys)):
            return time.monotonic() - start_s
        time.sleep(0.5)
    sys.exit(f"not all of {len(jobs)} jobs run after {SETTLE_S:g} s\n{place.said()}")


def _cpu(place: Place) -> dict[str, float]:
    return {one.name: one.cpu_s() for one in (place.replica, place.redis, place.peer)}


def _wrong(found: traffic.Traffic, running: Sequence[str]) -> list[str]:
    """What was lost, doubled or refused; nothing if all is as it should be."""
    wrong = []
    jobs = [one for made in found.accepted.values() for one in made]
    if not len(found.accepted) == len(jobs) == CLIENTS * WAVES:
        wrong.append(
            f"{CLIENTS * WAVES} submissions, {len(found.accepted)} accepted, {len(jobs)} jobs"
        )
    if sorted(found.listed) != sorted([*running, *jobs]):
        wrong.append(f"{len(found.listed)} jobs are listed, {len(running)} + {len(jobs)} were made")
    for stream in found.streams:
        there = found.pages[stream.job]
        if stream.ids != there:
            lost, twice = set(there) - set(stream.ids), len(stream.ids) - len(set(stream.ids))
            wrong.append(
                f"a stream of {stream.job} ({stream.cuts} cuts) told {len(stream.ids)} of "
                f"{len(there)} events: {len(lost)} lost, {twice} doubled"
            )
    return wrong


def main(options: argparse.Namespace) -> None:
    options.seconds = options.seconds or (20.0 if options.quick else 120.0)
    options.saturate_s = 1.0 if options.quick else 4.0
    interruptible()
    with (
        tempfile.TemporaryDirectory(prefix="bench-load-") as name,
        Place(Path(name), options.running, options.pause) as place,
    ):
        found = measure(place, options)
    common.report(report.results(found), options.json, **report.facts(found))


if __name__ == "__main__":
    parser = common.arguments("Load: a replica of the service.", threads=False)
    parser.add_argument("--running", type=int, default=RUNNING, help="jobs that run all the while")
    parser.add_argument("--rate", type=float, default=RATE, help="reads a second of the service")
    parser.add_argument("--seconds", type=float, help="how long the load goes on")
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="seconds a reward takes")
    main(parser.parse_args())
