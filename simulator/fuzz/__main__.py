"""``python -m simulator.fuzz``: run seeds of the fault simulation, or one of them again.

Prints the seed and the story of every failure, with the command that replays it, and ends with
exit code 1 if there was one. ``PYTHONHASHSEED`` makes no difference.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulator.fuzz.run import Report, run_seed

SHOWN_EVENTS = 60
"""Last events of a failure that are shown without ``--verbose``."""
MOST_FAILURES = 5
"""After so many there is enough to look at."""
TWICE_EVERY = 50
"""Each so-many-th seed is run again, and must tell the same story."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if options.seed is not None:
        report = run_seed(options.seed)
        _show(console, report, most=None if options.verbose else SHOWN_EVENTS)
        return 1 if report.failure else 0
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end)) if end else itertools.count(int(first))
    seconds = options.seconds if options.seconds or end else 60.0
    failures = _run(console, seeds, seconds)
    for report in failures:
        _show(console, report, most=None if options.verbose else SHOWN_EVENTS)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator.fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, help="stop after so long; 60 unless --seeds has an end"
    )
    parser.add_argument("--seeds", metavar="A:B", default="0:", help="seeds A up to, not with, B")
    parser.add_argument("--seed", type=int, help="run one seed and tell what happened")
    parser.add_argument("--verbose", action="store_true", help="tell whole stories")
    return parser


def _run(console: Console, seeds: Iterable[int], seconds: float | None) -> list[Report]:
    """The failures of as many seeds as there is time for."""
    began_s = time.monotonic()
    failures: list[Report] = []
    faults: Counter[str] = Counter()
    count = controllers = 0
    with _progress(console) as progress:
        total = len(seeds) if isinstance(seeds, range) else None
        task = progress.add_task("", total=total, failures=0)
        for seed in seeds:
            report = run_seed(seed)
            if report.failure is None and seed % TWICE_EVERY == 0:
                report = _again(report)
            count += 1
            controllers += report.controllers
            faults += report.faults
            if report.failure is not None:
                failures.append(report)
            progress.update(task, completed=count, failures=len(failures))
            elapsed_s = time.monotonic() - began_s
            if len(failures) == MOST_FAILURES or (seconds and elapsed_s >= seconds):
                break
    elapsed_s = time.monotonic() - began_s
    console.print(
        f"{count} seeds in {elapsed_s:.0f} s ({count / elapsed_s:.1f}/s): {controllers} "
        f"controllers, {faults.total()} faults, {len(failures)} failures"
    )
    console.print(", ".join(f"{kind} {number}" for kind, number in faults.most_common()))
    return failures


def _again(report: Report) -> Report:
    """The report, or that the seed tells two stories."""
    other = run_seed(report.seed)
    if other.digest == report.digest:
        return report
    pairs = itertools.zip_longest(report.trace.lines(), other.trace.lines())
    one, two = next((a, b) for a, b in pairs if a != b)
    return replace(report, failure=f"two runs differ, first in\n  {one}\n  {two}")


def _show(console: Console, report: Report, most: int | None) -> None:
    """Tell a seed's story, or its last ``most`` events."""
    left_out = 0 if most is None else max(0, len(report.trace) - most)
    if left_out:
        console.print(f"... {left_out} earlier events: add --verbose")
    for line in report.trace.lines(left_out):
        console.print(line)
    console.print(
        f"seed {report.seed}: {report.controllers} controllers, {report.virtual_s:.1f} virtual "
        f"seconds, {report.faults.total()} faults, trace {report.digest}"
    )
    if report.failure is not None:
        console.print(f"FAILED: {report.failure.rstrip()}")
        console.print(f"replay it: python -m simulator.fuzz --seed {report.seed} --verbose")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failures]} failures"),
        console=console,
        transient=True,
    )


if __name__ == "__main__":
    sys.exit(main())
