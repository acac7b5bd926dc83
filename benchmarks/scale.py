"""What 10, 100 and 1,000 accelerators make of the controller's work: CPU, frames, bytes, memory.

    python -m benchmarks.scale [--quick] [--json FILE]

Three parts, put together in ``docs/scale.md``:

- *job*: whole steps of a 7B GRPO job, 16 samples an accelerator, by the real controller on the
  simulated platform, whose own CPU time is booked apart (``benchmarks.large.job``);
- *wire*: what a frame costs on its way through real sockets (``benchmarks.large.wire``);
- *store*: what the finished samples of such a step cost in a real Redis
  (``benchmarks.large.journal``).

*Before* is the same with every engine telling its tokens every 50 ms and every write by itself. In
the JSON, ours is CPU seconds (jobs a step, the store a step) as it is, and the peer as it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from benchmarks.common import Result, arguments, report
from benchmarks.large.job import GROUP, Mark, Size, peak_bytes, run
from benchmarks.large.journal import Endings, keep
from benchmarks.large.wire import Load, allow_many_sockets, carry, serving
from controller.generate import FRAMES_PER_S
from controller.step import KEEP_S

SAMPLES = 16
"""Of an actor in a step."""
ACTORS = (10, 100, 1000)
ENGINES_S = 0.05
"""Between frames of tokens where nobody asks for fewer (``functions.rollout.generation``)."""
WIRE_S = 5.0
PATIENCE = 4


def measure_job(actors: int, *, each: bool) -> dict[str, float]:
    """Medians a step, in this process; the first step, which starts everything, is left out."""
    samples = GROUP * -(-SAMPLES * actors // GROUP)
    marks = run(Size(actors, samples), each=each)
    steps = list(pairwise(marks))[1:]

    def median(of: Callable[[Mark], float]) -> float:
        return statistics.median(of(after) - of(before) for before, after in steps)

    def total(name: str, *keys: str) -> float:
        def of(mark: Mark) -> float:
            counter: Counter[str] = getattr(mark.counted, name)
            return sum(counter[key] for key in keys or counter)

        return median(of)

    metrics = [after.record.metrics for _, after in steps]
    return {
        "samples": samples,
        "step_s": median(lambda mark: mark.now_s),
        "rollout_s": statistics.median(each["time/rollout_s"] for each in metrics),
        "pull_s": statistics.median(each["time/weights_pull_s"] for each in metrics),
        "actors": statistics.median(each["rollout/actors"] for each in metrics),
        "cpu_s": median(lambda mark: mark.cpu_s - mark.platform_s),
        "platform_cpu_s": median(lambda mark: mark.platform_s),
        "collecting_s": median(lambda mark: mark.collecting_s),
        "planning_s": median(lambda mark: mark.planning_s),
        "events": median(lambda mark: mark.events),
        "calls": total("calls"),
        "rollout_calls": total("calls", "rollout"),
        "steers": total("calls", "rollout/steer"),
        "frames": total("frames"),
        "token_frames": total("frames", "Tokens"),
        "mb_in": total("bytes_in") / 1e6,
        "mb_out": total("bytes_out") / 1e6,
        "mb_batch": total("stored", "batches") / 1e6,
        "writes": total("writes"),
        "sample_writes": total("writes", "samples"),
        "mb_written": total("written") / 1e6,
        "peak_mib": peak_bytes() / 2**20,
    }


def jobs(sizes: tuple[int, ...], facts: dict[str, Any]) -> Iterator[Result]:
    for actors in sizes:
        found = {}
        for case in ("ours", "before"):
            command = [sys.executable, "-m", "benchmarks.scale", "--case", str(actors), case]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[case] = json.loads(done.stdout)
        facts[f"job {actors}"] = found
        for case, one in found.items():
            print(f"{actors} actors, {case}:", *(f"{k}={v:.4g}" for k, v in one.items()))
        yield Result.time(
            f"job: {actors} actors, a step", found["ours"]["cpu_s"], found["before"]["cpu_s"]
        )


def wire(quick: bool, facts: dict[str, Any]) -> Iterator[Result]:
    """CPU of the streams' own rate, and of the engines'."""
    allow_many_sockets()
    seconds = WIRE_S / (2 if quick else 1)
    with serving() as url:
        for actors in ACTORS[1 : 2 if quick else None]:
            cores = []
            for every_s in (max(ENGINES_S, actors / FRAMES_PER_S), ENGINES_S):
                one = carry(url, Load(actors, SAMPLES, every_s, seconds))
                cores.append(one.cpu_s)
                facts[f"wire {actors} every {every_s:g}"] = {
                    "offered_per_s": one.load.offered,
                    "carried_per_s": one.per_s,
                    "frame_us": one.frame_us,
                    "cores": one.cpu_s / one.wall_s,
                    "cpu_s": one.cpu_s,
                    "lag_ms": 1e3 * one.lag_s,
                }
                print(f"{actors} streams, told every {every_s:g} s:", _said(facts))
            yield Result.time(f"wire: {actors} streams for {seconds:g} s", *cores)


def store(facts: dict[str, Any], quick: bool) -> Iterator[Result]:
    for actors in ACTORS[: 2 if quick else 3]:
        job = facts[f"job {actors}"]
        samples = job["ours"]["samples"]
        writing_s = max(1.0, job["ours"]["rollout_s"] - job["ours"]["pull_s"])
        tokens = round(1e6 * job["ours"]["mb_batch"] / samples / 8) - 256
        used = []
        for case, every_s in (("ours", KEEP_S * samples), ("before", None)):
            writes = round(job[case]["sample_writes"])
            # A thousand actors' writes one by one are more than the store takes in that time.
            seconds = writing_s if every_s is not None else PATIENCE * writing_s
            endings = Endings(writes, samples / writes, tokens, seconds)
            with tempfile.TemporaryDirectory() as folder:
                one = keep(folder, endings, every_s)
            used.append(one.cpu_s)
            facts[f"store {actors} {case}"] = {
                "cpu_s": one.cpu_s,
                "redis_cpu_s": one.redis_s,
                "commands": one.commands,
                "mb": one.num_bytes / 1e6,
                "longest_ms": 1e3 * one.late_s,
            }
            print(f"{actors} actors, {case}, job store:", _said(facts))
        yield Result.time(f"store: {actors} actors, a step", *used)


def _said(facts: dict[str, Any]) -> str:
    last = facts[next(reversed(facts))]
    return ", ".join(f"{name}={value:.4g}" for name, value in last.items())


def main() -> None:
    parser = arguments(__doc__ or "", threads=False)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        actors, case = given.case
        print(json.dumps(measure_job(int(actors), each=case == "before")))
        return
    facts: dict[str, Any] = {}
    results = []
    sizes = ACTORS[: 2 if given.quick else None]
    for part in (jobs(sizes, facts), wire(given.quick, facts), store(facts, given.quick)):
        for result in part:
            print(result, flush=True)
            results.append(result)
    report(results, given.json, **facts)


if __name__ == "__main__":
    main()
