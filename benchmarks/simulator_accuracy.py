"""What the simulator predicts against what was measured, on this machine.

    python -m benchmarks.simulator_accuracy [--quick] [--json FILE] [--docs FILE] [--cases WORD ...]

Real jobs on the local platform: the quick start, and jobs of 4 to 16 rollout actors whose computing
is slept (``benchmarks.paced``). Each is compared with its simulation, whose constants and response
lengths come from a *calibration run*: another run, of another seed and, where computing is slept,
of another number of actors. Compared are the median step and the function-seconds held a step,
those of the warm-up left out on both sides.

Real computing waits until other processes leave the machine alone, and a run during which they took
more than ``BUSY`` cores all the same is made again, up to ``TRIES`` times; the quietest counts. The
same holds for calibration runs. Work that is slept is hardly disturbed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import common, models
from benchmarks.live_job import Made, make
from benchmarks.paced.workloads import Recipe, record
from benchmarks.scheduling import OURS, PACED, STATIC, Strategy, paced_spec
from benchmarks.scheduling import Case as Slept
from controller.execution import load_data
from rlhfless.measurements import as_json
from rlhfless.messages import FunctionName
from rlhfless.spec import JobSpec
from rlhfless.spec_file import load_spec, parse_spec
from simulator.cluster import Cluster, make_cluster
from simulator.model_shape import load_shape
from simulator.scenario import Scenario
from simulator.simulate import simulate
from simulator.workload_fit import fit_lengths
from simulator.workload_trace import Group, LengthTrace, text_of

QUICKSTART = models.QUICKSTART.parents[1] / "quickstart.yaml"
RLHFLESS = OURS[0]
STRATEGIES = (STATIC, RLHFLESS)
CALIBRATED_WITH = 6
"""Actors of the calibration run where computing is slept."""
BUSY = 0.1
TRIES = 2
LOOK_S, PATIENCE_S = 2.0, 20.0
"""Seconds of a look at what others do, and how long their end is waited for."""
BEGIN, END = "<!-- simulator_accuracy -->", "<!-- end of simulator_accuracy -->"


@dataclass(frozen=True, eq=False)
class Compared:
    """A job that is run and predicted; ``warmup`` steps do not count. ``apps``: functions that are
    not the usual ones."""

    workload: str
    actors: int
    strategy: str
    spec: JobSpec
    warmup: int
    apps: Mapping[FunctionName, str]


@dataclass(frozen=True)
class Line:
    """Seconds: the median step, and what was held in a step on average."""

    workload: str
    actors: int
    strategy: str
    step_s: float
    predicted_step_s: float
    held_s: float
    predicted_held_s: float

    @classmethod
    def of(
        cls,
        job: Compared,
        measured: Sequence[tuple[float, float]],
        predicted: Sequence[tuple[float, float]],
    ) -> Line:
        """Medians over rounds of (median step, held a step)."""
        (step_s, held_s), (said_step_s, said_held_s) = (
            (statistics.median(a for a, _ in each), statistics.median(b for _, b in each))
            for each in (measured, predicted)
        )
        return cls(job.workload, job.actors, job.strategy, step_s, said_step_s, held_s, said_held_s)

    @property
    def step_error(self) -> float:
        return self.predicted_step_s / self.step_s - 1

    @property
    def held_error(self) -> float:
        return self.predicted_held_s / self.held_s - 1

    def cells(self) -> list[str]:
        return [
            self.workload,
            str(self.actors),
            self.strategy,
            f"{self.step_s:.3f}",
            f"{self.predicted_step_s:.3f}",
            f"{self.step_error:+.1%}",
            f"{self.held_s:.2f}",
            f"{self.predicted_held_s:.2f}",
            f"{self.held_error:+.1%}",
        ]


HEAD = [
    "job",
    "actors",
    "strategy",
    "step s",
    "predicted",
    "error",
    "held fn-s",
    "predicted",
    "error",
]


# --- jobs ----------------------------------------------------------------------------------------


def quickstart(chosen: Strategy, seed: int, steps: int, warmup: int) -> Compared:
    spec = load_spec(str(QUICKSTART)).model_dump(mode="json")
    spec |= {
        "seed": seed,
        "evaluation": None,
        "scheduling": chosen.scheduling,
        "objective": {"time_weight": chosen.time_weight},
    }
    spec["training"] |= {"steps": steps, "overlap": chosen.overlap}
    job = parse_spec(spec)
    name = f"quick start, seed {seed}"
    return Compared(name, job.rollout.max_instances, chosen.name, job, warmup, {})


def paced(case: Slept, chosen: Strategy, actors: int, seed: int, folder: Path) -> Compared:
    """All of a recipe share prompts; the seed decides what is sampled."""
    place = folder / case.recipe.name.replace(" ", "-")
    if not place.exists():
        record(case.recipe, place)
    raw = paced_spec(case, chosen, place / "model", place / "data.jsonl", actors)
    spec = parse_spec(raw | {"seed": seed})
    return Compared(case.recipe.name, actors, chosen.name, spec, case.warmup, PACED)


# --- prediction ----------------------------------------------------------------------------------


def this_machine() -> Cluster:
    """Processes, as many as a job asks for: the local platform bounds none."""
    cores = {"accelerator": "cpu-core", "per_node": 64, "memory_gib": 8}
    return make_cluster({"name": "this-machine", "sharing": "unlimited", "cold_start": "process",
                         "pools": {"cores": cores}})  # fmt: skip


def recorded(made: Made) -> list[Group]:
    """Lengths of a run's responses, by step and prompt."""
    groups = []
    for number, step in enumerate(made.steps):
        lengths: dict[str, list[int]] = {}
        for sample, tokens in step.responses.items():
            lengths.setdefault(text_of(step.prompts[sample].row.prompt), []).append(len(tokens))
        groups += [Group(number, prompt, tuple(each)) for prompt, each in lengths.items()]
    return groups


def predict(job: Compared, calibration: Made) -> tuple[float, float]:
    """(median step, held a step) in seconds."""
    groups = recorded(calibration)
    data = load_data(job.spec)
    # The model of a paced job is no model; what it would take is all measured.
    shape = load_shape(str(models.QUICKSTART))
    scenario = Scenario(
        prompts=tuple(data.prompts),
        evaluation=(),
        workload=LengthTrace(groups, fit_lengths(groups, cap=job.spec.rollout.max_tokens)),
        shape=shape,
        measurements=calibration.measured,
    )
    found = simulate(job.spec, this_machine(), scenario, strategy=job.strategy)
    return _summary([step.metrics for step in found.simulated[job.warmup :]])


def _summary(steps: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    return (
        statistics.median(step["time/step_s"] for step in steps),
        statistics.mean(step["functions/held_s"] for step in steps),
    )


# --- the benchmark -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``rounds``: how often everything is run; medians over them are compared."""

    name: str
    rounds: int
    calibration: Compared
    jobs: list[Compared]


def cases(quick: bool, folder: Path) -> Iterator[Case]:
    steps, warmup = (8, 3) if quick else (16, 4)
    seeds = (1,) if quick else (1, 2)
    yield Case(
        "quick start",
        1 if quick else 3,
        quickstart(RLHFLESS, 7, steps, warmup),
        [quickstart(each, seed, steps, warmup) for seed in seeds for each in STRATEGIES],
    )
    prompts, longest = (16, 120) if quick else (32, 200)
    recipe = Recipe("slept, groups of 8", prompts, 8, (512, 1024), longest=longest)
    slept = Slept(recipe, steps=5 if quick else 8, warmup=3 if quick else 4)
    yield Case(
        "slept",
        1,
        paced(slept, RLHFLESS, CALIBRATED_WITH, 7, folder),
        [
            paced(slept, each, actors, 1, folder)
            for actors in ((4, 16) if quick else (4, 8, 12, 16))
            for each in STRATEGIES
        ],
    )


def run(job: Compared, folder: Path, name: str) -> Made:
    """The job, when the machine is as quiet as it gets."""
    runs: list[tuple[float, Made]] = []
    tries = 1 if job.apps else TRIES
    while len(runs) < tries and (not runs or min(taken for taken, _ in runs) > BUSY):
        if not job.apps:
            _await_quiet()
        place = folder / f"{name}-{len(runs)}".replace(" ", "-")
        with Others() as others:
            made = make(job.spec, str(place), job.apps)
        runs.append((others.cores, made))
    taken, made = min(runs, key=lambda each: each[0])
    print(f"  {name}: others took {taken:.2f} cores (try {len(runs)})", flush=True)
    return made


def _await_quiet() -> None:
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        with Others() as others:
            time.sleep(LOOK_S)
        if others.cores <= BUSY:
            return


class Others:
    """``cores``: taken by other processes than this one and its ended children, while the block
    ran; 0 where the system does not tell."""

    def __enter__(self) -> Others:
        self.cores = 0.0
        self._began = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        (began_s, all_s, ours_s), (ended_s, all_end_s, ours_end_s) = self._began, self._now()
        others_s = (all_end_s - all_s) - (ours_end_s - ours_s)
        self.cores = max(0.0, others_s / (ended_s - began_s))

    def _now(self) -> tuple[float, float, float]:
        """Seconds: of the clock, of all cores at work, and of ours."""
        times = os.times()
        ours_s = times.user + times.system + times.children_user + times.children_system
        try:
            fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        except OSError:
            return time.monotonic(), ours_s, ours_s
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
        ticks = user + nice + system + irq + softirq + steal
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), ours_s


def measure(case: Case, folder: Path) -> tuple[list[Line], list[dict[str, Any]]]:
    """The lines of a case, and what its calibrations said."""
    measured: dict[Compared, list[tuple[float, float]]] = {}
    predicted: dict[Compared, list[tuple[float, float]]] = {}
    calibrations = []
    for number in range(case.rounds):
        print(f"{case.name}: round {number + 1} of {case.rounds}", flush=True)
        calibration = run(case.calibration, folder, f"{case.name}-{number}-calibration")
        calibrations.append(as_json(calibration.measured))
        for index, job in enumerate(case.jobs):
            made = run(job, folder, f"{case.name}-{number}-{index}")
            steps = [step.metrics for step in made.steps[job.warmup :]]
            measured.setdefault(job, []).append(_summary(steps))
            predicted.setdefault(job, []).append(predict(job, calibration))
            now = Line.of(job, measured[job][-1:], predicted[job][-1:])
            print(row(now.cells()), flush=True)
    return [Line.of(job, measured[job], predicted[job]) for job in case.jobs], calibrations


def row(cells: Sequence[str]) -> str:
    widths = (22, 7, 22, 9, 10, 8, 10, 10, 8)
    return " ".join(
        cell.ljust(width) if number in (0, 2) else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def median_errors(lines: Sequence[Line]) -> tuple[float, float]:
    return (
        statistics.median(abs(line.step_error) for line in lines),
        statistics.median(abs(line.held_error) for line in lines),
    )


def verdict(lines: Sequence[Line]) -> str:
    step, held = median_errors(lines)
    return f"Median error: {step:.1%} of step time, {held:.1%} of function-seconds held."


def write_docs(path: str, lines: Sequence[Line]) -> None:
    """Replace the results between the marks in a page."""
    text = Path(path).read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    rows = [HEAD, ["---", "--:", "---", *["--:"] * 6], *(line.cells() for line in lines)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    Path(path).write_text(
        f"{before}{BEGIN}\n{table}\n\n{verdict(lines)}\n{END}{after}", encoding="utf-8"
    )


def main(options: argparse.Namespace) -> None:
    lines: list[Line] = []
    calibrations: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-accuracy-") as temporary:
        folder = Path(temporary)
        for case in cases(options.quick, folder):
            if not options.cases or any(word in case.name for word in options.cases):
                found, calibrations[case.name] = measure(case, folder)
                lines += found
    print("\n" + "\n".join(row(cells) for cells in (HEAD, *(line.cells() for line in lines))))
    print(f"\n{verdict(lines)}")
    facts = [asdict(line) | {"step_error": line.step_error, "held_error": line.held_error}
             for line in lines]  # fmt: skip
    common.report([], options.json, compared=facts, calibrations=calibrations)
    if options.docs:
        write_docs(options.docs, lines)


if __name__ == "__main__":
    parser = common.arguments("The simulator against measurement.", threads=False)
    parser.add_argument("--cases", nargs="*", help="only cases whose name has one of these words")
    parser.add_argument("--docs", metavar="FILE", help="write the table into this page")
    main(parser.parse_args())
