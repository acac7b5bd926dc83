"""What scheduling saves: a workload under ``static``, ``rlhfless``, and with each technique alone.

    python -m benchmarks.scheduling [--quick] [--json FILE] [--png FILE] [--cases WORD ...]

``paced`` cases run whole jobs of 16 rollout actors whose computing is slept (``benchmarks.paced``):
processes, streams, steering and bytes are real, times are those of a 7B model on one A100 an actor.
``quickstart`` runs the real engine with 2 actors. All strategies generate the very same responses,
which is checked. Held function-seconds are those of all functions, a step.

JSON: cases that compare function-seconds begin with ``held:``, those of step time with ``speed:``;
ours is ``rlhfless``, the peer ``static``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import common, long_tail, models
from benchmarks.bounds import Bounds, bounds
from benchmarks.common import Result
from benchmarks.gantt import Chart, draw
from benchmarks.live_job import Made, Step, make
from benchmarks.paced.engine import LATENESS_FILE
from benchmarks.paced.pace import PACE
from benchmarks.paced.workloads import Recipe, record
from controller.ledger import Usage
from rlhfless.messages import FunctionName
from rlhfless.spec import SchedulingSpec
from rlhfless.spec_file import parse_spec

ACTORS = 16
PACED: dict[FunctionName, str] = {
    "rollout": "benchmarks.paced.rollout:create",
    "reward": "benchmarks.paced.scoring:create_reward",
    "reference": "benchmarks.paced.scoring:create_reference",
    "training": "benchmarks.paced.training:create",
}
_OFF: dict[str, Any] = SchedulingSpec(strategy="static").model_dump() | {"strategy": "custom"}
"""Every switch as ``static`` has it, to be set one by one."""


@dataclass(frozen=True)
class Strategy:
    """``scheduling`` of the job spec, ``training.overlap``, and λ."""

    name: str
    scheduling: dict[str, Any]
    time_weight: float
    overlap: bool = False


def strategy(name: str, time_weight: float, *, overlap: bool = False, **on: Any) -> Strategy:
    return Strategy(name, _OFF | on, time_weight, overlap)


STATIC = Strategy("static", {"strategy": "static"}, 1.0)
OURS = tuple(
    Strategy(f"rlhfless, lambda {weight:g}", {"strategy": "rlhfless"}, weight, overlap=True)
    for weight in (0.5, 1.0)
)
_KNOWING: dict[str, Any] = {"predict_lengths": True, "assignment": "auto"}
ALONE = (
    strategy("+ dedup_prefill", 0.5, dedup_prefill=True),
    strategy("+ dedup_prefill, prefix_cache", 0.5, dedup_prefill=True, prefix_cache=True),
    strategy("+ predict_lengths, assignment", 0.5, **_KNOWING),
    strategy("+ early_release", 0.5, early_release=True),
    strategy("+ scale_actors, lambda 0.5", 0.5, scale_actors=True),
    strategy("+ scale_actors, lambda 1", 1.0, scale_actors=True),
    strategy("+ migrate", 0.5, migrate=True),
    strategy("+ stream_scoring", 0.5, stream_scoring=True),
    strategy("+ stream_scoring, overlap", 0.5, stream_scoring=True, overlap=True),
)


@dataclass(frozen=True)
class Case:
    """The first ``warmup`` of ``steps`` are not counted. ``alone``: also each technique alone."""

    recipe: Recipe
    steps: int
    warmup: int
    alone: bool = False


def cases(quick: bool) -> Iterator[Case]:
    if quick:
        recipe = Recipe("long prompts, groups of 8", 16, 8, (512, 1024), longest=160)
        yield Case(recipe, steps=6, warmup=3)
        return
    long = (512, 1024)
    yield Case(Recipe("long prompts, groups of 8", 32, 8, long), 10, 5, alone=True)
    yield Case(Recipe("long prompts, groups of 16", 32, 16, long), 10, 5)
    yield Case(Recipe("short prompts, groups of 8", 32, 8, (24, 40)), 10, 5, alone=True)
    yield Case(Recipe("a system prompt, groups of 16", 32, 16, (64, 256), 512), 10, 5)


# --- a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Of the counted steps of a run: medians of seconds and counts, means of function-seconds."""

    strategy: Strategy
    steps: list[Step]
    usage: dict[FunctionName, Usage]
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", self.median("time/step_s"))

    def median(self, metric: str) -> float:
        return float(statistics.median(step.metrics.get(metric, 0.0) for step in self.steps))

    @property
    def total(self) -> Usage:
        return sum(self.usage.values(), Usage())

    def facts(self) -> dict[str, Any]:
        used = {name: (u.held_s, u.busy_s, u.idle_s, u.cold_s) for name, u in self.usage.items()}
        return {
            "step_s": [step.metrics["time/step_s"] for step in self.steps],
            "held_busy_idle_cold_s": used,
            "actors": [step.metrics["rollout/actors"] for step in self.steps],
            "prompt_tokens_computed": self.median("prefill/tokens_computed"),
            "prompt_tokens_loaded": self.median("prefill/tokens_loaded"),
            "samples_moved": self.median("rollout/samples_moved"),
            "cost_model_error": self.median("cost_model/error"),
            "length_rank_correlation": self.median("lengths/rank_correlation"),
            "overhead_s": self.median("time/overhead_s"),
            "controller_cpu_s": statistics.median(step.controller_cpu_s for step in self.steps),
        }


def paced_spec(
    case: Case, chosen: Strategy, model: Path, data: Path, actors: int = ACTORS
) -> dict[str, Any]:
    recipe = case.recipe
    return {
        "model": {"path": str(model)},
        "dataset": {"path": str(data), "shuffle": False},
        "rewards": [{"python": "benchmarks.paced.scoring:paced", "name": "paced"}],
        "algorithm": {"name": "grpo", "group_size": recipe.group, "kl": {"coefficient": 0.01}},
        "rollout": {"max_tokens": recipe.longest, "max_instances": actors},
        "training": {
            "steps": case.steps,
            "prompts_per_step": recipe.prompts,
            "overlap": chosen.overlap,
        },
        "scheduling": chosen.scheduling,
        "objective": {"time_weight": chosen.time_weight},
    }


def run_paced(case: Case, chosen: Strategy, folder: Path) -> tuple[Made, Measured]:
    """A whole job; ``folder`` gets the workload (always the same) and what the job writes."""
    recorded = record(case.recipe, folder / "workload")
    spec = parse_spec(paced_spec(case, chosen, recorded.model, recorded.data))
    made = make(spec, str(folder / "run"), PACED)
    counted = made.steps[case.warmup :]
    return made, Measured(chosen, counted, made.usage(counted))


def check_same(runs: Sequence[Made]) -> None:
    """The same responses, token by token, and the same log-probs, whoever generated them."""
    first = runs[0]
    for made in runs[1:]:
        for a, b in zip(first.steps, made.steps, strict=True):
            same = a.metrics.get("paced/digest") == b.metrics.get("paced/digest")
            if a.responses != b.responses or not same:
                sys.exit(f"step {a.metrics['step']:.0f}: not the same responses: a bug")


@dataclass(frozen=True)
class Lateness:
    """Milliseconds by which the paced work of a case's runs ended late, over all waits."""

    mean_ms: float
    worst_ms: float
    lost_share: float

    @classmethod
    def read(cls, folders: Sequence[Path]) -> Lateness:
        lines = [
            json.loads(line)
            for folder in folders
            for line in (folder / "workload" / "model" / LATENESS_FILE).read_text().splitlines()
        ]
        return cls(
            1e3 * sum(line["late_s"] for line in lines) / sum(line["waits"] for line in lines),
            1e3 * max(line["worst_s"] for line in lines),
            sum(line["lost_s"] for line in lines) / sum(line["slept_s"] for line in lines),
        )


# --- report --------------------------------------------------------------------------------------

_HEAD = (
    f"{'':<30}{'step':>7}{'held':>8}{'busy':>7}{'idle':>7}{'cold':>6}  {'held by':>9}{'busy':>7}"
    f"{'actors':>8}{'prompt tokens':>15}{'samples':>9}{'cost':>7}\n"
    f"{'':<30}{'s':>7}{'fn-s':>8}{'fn-s':>7}{'fn-s':>7}{'fn-s':>6}  {'rollout':>9}{'':>7}"
    f"{'':>8}{'run/loaded':>15}{'moved':>9}{'error':>7}"
)


def line(run: Measured) -> str:
    total, rollout = run.total, run.usage.get("rollout", Usage())
    actors = [step.metrics["rollout/actors"] for step in run.steps]
    span = f"{min(actors):.0f}-{max(actors):.0f}" if len(set(actors)) > 1 else f"{actors[0]:.0f}"
    computed, loaded = run.median("prefill/tokens_computed"), run.median("prefill/tokens_loaded")
    return (
        f"{run.strategy.name:<30}{run.seconds:7.2f}{total.held_s:8.1f}{total.busy_s:7.1f}"
        f"{total.idle_s:7.1f}{total.cold_s:6.1f}  {rollout.held_s:9.1f}{rollout.busy_s:7.1f}"
        f"{span:>8}{f'{computed:.0f}/{loaded:.0f}':>15}{run.median('rollout/samples_moved'):9.0f}"
        f"{run.median('cost_model/error'):7.1%}"
    )


def compare(name: str, ours: Measured, static: Measured) -> list[Result]:
    results = [
        Result.time(f"held: {name}", ours.total.held_s, static.total.held_s, "fn-s/step"),
        Result.time(f"speed: {name}", ours.seconds, static.seconds),
    ]
    for result in results:
        print(result, flush=True)
    return results


def run_case(
    case: Case, folder: Path, png: str | None, only: Sequence[str]
) -> tuple[list[Result], dict[str, Any]]:
    name = f"paced: {ACTORS} actors, {case.recipe.name}"
    print(f"\n{name}  ({case.recipe.prompts} prompts a step)\n{_HEAD}", flush=True)
    strategies = [STATIC, *OURS, *(ALONE if case.alone else ())]
    strategies = [s for s in strategies if not only or any(word in s.name for word in only)]
    runs: dict[str, tuple[Made, Measured]] = {}
    folders = [folder / chosen.name.replace(" ", "-") for chosen in strategies]
    for chosen, place in zip(strategies, folders, strict=True):
        runs[chosen.name] = run_paced(case, chosen, place)
        print(line(runs[chosen.name][1]), flush=True)
    check_same([made for made, _ in runs.values()])
    late = Lateness.read(folders)
    print(
        f"the same responses in all; paced work ended {late.mean_ms:.1f} ms late on average, "
        f"{late.worst_ms:.0f} ms at worst, {late.lost_share:.2%} of it was lost"
    )
    facts: dict[str, Any] = {"lateness": vars(late)}
    facts |= {key: measured.facts() for key, (_, measured) in runs.items()}
    results: list[Result] = []
    if STATIC.name not in runs:
        return results, facts
    static = runs[STATIC.name][1]
    for ours in OURS:
        if ours.name in runs:
            results += compare(f"{name}, lambda {ours.time_weight:g}", runs[ours.name][1], static)
    found = [bounds(step, PACE, ACTORS) for step in static.steps]
    facts["bounds"] = _print_bounds(found)
    if png is not None:
        _draw(name, [runs[s.name] for s in (STATIC, *OURS) if s.name in runs], png)
    return results, facts


def _print_bounds(found: Sequence[Bounds]) -> dict[str, float]:
    medians = {
        key: float(statistics.median(getattr(bound, key) for bound in found))
        for key in Bounds.__dataclass_fields__
    }
    print(
        "    who knew all lengths: a step of {step_s:.2f} s at least; rollout of {fast_s:.2f} s "
        "with {fast_held_s:.1f} fn-s (lambda 1), {cheap_s:.2f} s with {cheap_held_s:.1f} fn-s "
        "(lambda 0.5)".format(**medians),
        flush=True,
    )
    return medians


def _draw(name: str, runs: Sequence[tuple[Made, Measured]], png: str) -> None:
    """The counted step of median length of each run."""
    charts = []
    for made, measured in runs:
        step = sorted(measured.steps, key=lambda s: s.metrics["time/step_s"])[
            len(measured.steps) // 2
        ]
        held = sum(s.end_s - s.start_s for s in made.spans(step))
        seconds = step.end_s - step.start_s
        title = f"{name}: {measured.strategy.name}: {seconds:.1f} s, {held:.0f} function-seconds"
        charts.append(Chart(title, made.spans(step), step.start_s, seconds))
    draw(charts, png)
    print(f"    {png}", flush=True)


# --- the real engine -----------------------------------------------------------------------------


def run_live(folder: Path, quick: bool) -> tuple[list[Result], dict[str, Any]]:
    """The quick start's model with a long tail, on the real functions, 2 actors."""
    steps, warmup, prompts, rounds = (6, 2, 16, 1) if quick else (14, 4, 32, 3)
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in long_tail.rows(2, prompts)))
    runs: dict[str, list[Measured]] = {}
    print(f"\nquickstart: 2 actors\n{_HEAD}", flush=True)
    for number in range(rounds):
        for chosen in (STATIC, *OURS):
            spec = {
                "model": {"path": str(long_tail.MODEL)},
                "dataset": {"path": str(data), "shuffle": False},
                "rewards": [{"python": f"{models.QUICKSTART.parent}/rewards.py:exact_match"}],
                "algorithm": {"name": "grpo", "group_size": 8},
                "rollout": {"max_tokens": long_tail.MAX_TOKENS, "max_instances": 2},
                "training": {
                    "steps": steps,
                    "prompts_per_step": prompts,
                    "learning_rate": 1e-9,  # the same policy whatever the rounding: same responses
                    "overlap": chosen.overlap,
                },
                "scheduling": chosen.scheduling,
                "objective": {"time_weight": chosen.time_weight},
            }
            made = make(parse_spec(spec), str(folder / f"{number}-{len(runs)}-{chosen.name}"))
            counted = made.steps[warmup:]
            measured = Measured(chosen, counted, made.usage(counted))
            runs.setdefault(chosen.name, []).append(measured)
            print(line(measured), flush=True)
    results: list[Result] = []
    middle = {
        name: sorted(found, key=lambda run: run.seconds)[len(found) // 2]
        for name, found in runs.items()
    }
    for ours in OURS:
        results += compare(
            f"quickstart: 2 actors, lambda {ours.time_weight:g}",
            middle[ours.name],
            middle[STATIC.name],
        )
    return results, {name: [run.facts() for run in found] for name, found in runs.items()}


def main(options: argparse.Namespace) -> None:
    results: list[Result] = []
    facts: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="bench-scheduling-")
        name = options.keep or stack.enter_context(temporary)
        for number, case in enumerate(cases(options.quick)):
            if options.cases and not any(word in case.recipe.name for word in options.cases):
                continue
            folder = Path(name) / str(number)
            folder.mkdir(parents=True)
            png = None if number else options.png
            found, facts[case.recipe.name] = run_case(case, folder, png, options.only)
            results += found
        if not options.quick and (not options.cases or "quickstart" in options.cases):
            folder = Path(name) / "live"
            folder.mkdir(parents=True)
            found, facts["quickstart"] = run_live(folder, options.quick)
            results += found
    common.report(results, options.json, pace=vars(PACE), cases=facts)


if __name__ == "__main__":
    parser = common.arguments("Scheduling: what each technique saves.", threads=False)
    parser.add_argument("--png", metavar="FILE", help="draw instances over time, first case")
    parser.add_argument("--cases", nargs="*", help="only cases whose name has one of these words")
    parser.add_argument("--keep", metavar="FOLDER", help="keep what the jobs write, plans and all")
    parser.add_argument("--only", nargs="*", help="only strategies whose name has one of these")
    main(parser.parse_args())
