"""Seconds of a step with the update begun in the rollout's tail (``training.overlap``) and without.

    python -m benchmarks.overlap [--quick] [--json FILE]

Both sides are the same job, run as users run it (``benchmarks.paused_job``), in turn: without,
with, with, without, ... Same seeds, so the same samples up to rounding. Rollout and training have
one instance of one thread each, two processes at work at once: that takes two free cores.

``long tail``: a few groups take eight times as long as the mean, and training has time to hide in.
``even``: all responses of one length, where there is no tail and nothing can be gained.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common, long_tail, models, paused_job
from benchmarks.common import Result
from rlhfless.spec_file import parse_spec

WARMUP = 2
"""First steps of a run that are not counted."""


@dataclass(frozen=True)
class Case:
    """``rows`` of data in the order of use; ``training``: further fields of the job's section."""

    name: str
    model: Path
    rows: list[dict[str, str]]
    prompts: int
    training: dict[str, Any]


def cases(quick: bool, steps: int) -> Iterator[Case]:
    prompts = 64
    rows = list(long_tail.rows(steps, prompts))
    name = "quickstart: overlap, long tail"
    yield Case(name, long_tail.MODEL, rows, prompts, {})
    if quick:
        return
    yield Case(f"{name}, 4 minibatches", long_tail.MODEL, rows, prompts, {"minibatches": 4})
    even = list(long_tail.even_rows(steps, prompts, items=4))
    yield Case("quickstart: overlap, even lengths", models.QUICKSTART, even, prompts, {})


def measure(case: Case, steps: int, rounds: int) -> tuple[Result, dict[str, dict[str, float]]]:
    """Ours is with overlap; medians over the counted steps of all rounds, by side."""
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(rounds):
        for overlap in (False, True) if number % 2 == 0 else (True, False):
            found[overlap] += _run(case, steps, overlap)[WARMUP:]
    without, ours = (_medians(found[overlap]) for overlap in (False, True))
    result = Result.time(case.name, ours["time/step_s"], without["time/step_s"])
    return result, {"without": without, "with": ours}


def _run(case: Case, steps: int, overlap: bool) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="bench-overlap-") as name:
        folder = Path(name)
        data = folder / "data.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in case.rows))
        rewards = models.QUICKSTART.parent / "rewards.py"
        spec = parse_spec(
            {
                "model": {"path": str(case.model)},
                "dataset": {"path": str(data), "shuffle": False},
                "rewards": [{"python": f"{rewards}:exact_match"}],
                "algorithm": {"name": "grpo", "group_size": 8},
                "rollout": {"max_tokens": long_tail.MAX_TOKENS},
                "training": {
                    "steps": steps,
                    "prompts_per_step": case.prompts,
                    "learning_rate": 2e-4,
                    "overlap": overlap,
                    **case.training,
                },
            }
        )
        return paused_job.run(spec, str(folder / "run"), lambda: None)


_TOLD = (
    "time/step_s",
    "time/rollout_s",
    "time/train_s",
    "training/overlapped_share",
    "training/overlapped_s",
    "reward/mean",
    "response_length/mean",
    "response_length/max",
)


def _medians(steps: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(step[name] for step in steps) for name in _TOLD}


def _told(side: str, facts: dict[str, float]) -> str:
    step_s, rollout_s = facts["time/step_s"], facts["time/rollout_s"]
    return (
        f"    {side:<8} step {step_s:.3f} s, rollout {rollout_s:.3f} s, "
        f"training behind it {facts['time/train_s']:.3f} s, beside it "
        f"{facts['training/overlapped_s']:.3f} s ({facts['training/overlapped_share']:.0%} of the "
        f"tokens)\n             mean length {facts['response_length/mean']:.1f}, longest "
        f"{facts['response_length/max']:.0f}, reward {facts['reward/mean']:.3f}"
    )


def main(options: argparse.Namespace) -> None:
    steps, rounds = (8, 2) if options.quick else (12, 4)
    results: list[Result] = []
    facts: dict[str, Any] = {}
    for case in cases(options.quick, steps):
        result, sides = measure(case, steps, rounds)
        results.append(result)
        facts[case.name] = sides
        print(result)
        for side, found in sides.items():
            print(_told(side, found), flush=True)
    common.report(results, options.json, cases=facts)


if __name__ == "__main__":
    main(common.arguments("Overlap: seconds of a step.", threads=False).parse_args())
