"""Seconds of a whole GRPO step beside TRL's ``GRPOTrainer``.

    python -m benchmarks.grpo_step [--quick] [--json FILE] [--cases WORD ...]

Ours is a job as users run it: local platform, a process a function, Redis, journal, object store.
The peer is TRL in a process of its own. Both take a step in turn, the other standing still, on the
same model, prompts (in the same order), group size, token limit, optimizer steps and settings.
A step is everything from one policy version to the next: rollout, rewards, update, books.

TRL runs every other step with one thread and with all cores; the better of the two medians counts.
Ours runs with the threads in the case's job spec, one a function unless it says otherwise.

``long tail``: the mean response is about an eighth of the longest, in every step, by the choice of
prompts; what both sides really generated is printed. ``even``: all responses of one length.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common, long_tail, models, paused_job
from benchmarks.common import Result

EXAMPLES = models.QUICKSTART.parent.parent
QUICKSTART_PROMPTS = 32
OVERHEAD_TARGET = 0.05
"""What orchestration may take of a step."""


@dataclass(frozen=True)
class Case:
    """``spec`` fields of the job; ``rows`` of data, in the order of use. The first ``warmup`` steps
    of both sides are not counted."""

    name: str
    spec: dict[str, Any]
    rows: list[dict[str, Any]]
    steps: int
    warmup: int


@dataclass(frozen=True)
class Side:
    """Medians over the counted steps; ``reward`` is the mean over their last third."""

    seconds: float
    mean_length: float
    longest: float
    reward: float


# --- cases ---------------------------------------------------------------------------------------


def cases(quick: bool) -> Iterator[Case]:
    """Those whose models are here, the long tails first."""
    found = models.available()
    if "quickstart" in found:
        steps = 6 if quick else 30
        prompts = QUICKSTART_PROMPTS
        yield Case(
            "quickstart: GRPO step, long tail",
            _quickstart(long_tail.MODEL, steps, long_tail.MAX_TOKENS),
            list(long_tail.rows(steps, prompts)),
            steps,
            warmup=2,
        )
    if "smollm2" in found:
        steps = 2 if quick else 6
        prompts = 8 if quick else 16
        yield Case(
            "smollm2: GRPO step, long tail",
            _smollm2(steps, prompts, group_size=2 if quick else 4, max_tokens=32 if quick else 96),
            list(_sums_and_a_story(steps, prompts)),
            steps,
            warmup=1,
        )
    if "quickstart" in found and not quick:
        with open(EXAMPLES / "quickstart" / "data" / "train.jsonl", encoding="utf-8") as file:
            shipped = [json.loads(line) for line in file]
        yield Case(
            "quickstart: GRPO step, the job as shipped",
            _quickstart(models.QUICKSTART, steps, 64),
            shipped,
            steps,
            warmup=2,
        )
        yield Case(
            "quickstart: GRPO step, even lengths",
            _quickstart(models.QUICKSTART, steps, 64),
            list(long_tail.even_rows(steps, QUICKSTART_PROMPTS, items=4)),
            steps,
            warmup=2,
        )


def _quickstart(model: Path, steps: int, max_tokens: int) -> dict[str, Any]:
    """``examples/quickstart.yaml`` with another number of steps."""
    return {
        "model": {"path": str(model)},
        "rewards": [{"python": f"{EXAMPLES}/quickstart/rewards.py:exact_match"}],
        "algorithm": {"name": "grpo", "group_size": 8},
        "rollout": {"max_tokens": max_tokens, "max_instances": 2},
        "training": {
            "steps": steps,
            "prompts_per_step": QUICKSTART_PROMPTS,
            "minibatches": 4,
            "learning_rate": 2e-4,
            "schedule": "linear",
        },
    }


def _smollm2(steps: int, prompts: int, group_size: int, max_tokens: int) -> dict[str, Any]:
    return {
        "model": {"path": str(models.SMOLLM2)},
        "rewards": [{"python": f"{EXAMPLES}/smollm2/rewards.py:last_number_right"}],
        "algorithm": {"name": "grpo", "group_size": group_size},
        "rollout": {"max_tokens": max_tokens},
        "training": {
            "steps": steps,
            "prompts_per_step": prompts,
            "learning_rate": 5e-5,
            "trainable": "top_layers",
            "top_layers": 8,
        },
    }


def _sums_and_a_story(steps: int, prompts: int) -> Iterator[dict[str, Any]]:
    """A step's prompts: sums after two examples, which the model mostly answers in a few tokens,
    and one question that it talks about until the limit."""
    shots = []
    for question, answer in (("What is 2 + 2?", "4"), ("What is 5 + 1?", "6")):
        shots += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    with open(EXAMPLES / "smollm2" / "data" / "train.jsonl", encoding="utf-8") as file:
        sums = [json.loads(line) for line in file]
    for step in range(steps):
        for n in range(prompts - 1):
            row = sums[(step * (prompts - 1) + n) * 7 % len(sums)]
            yield {"prompt": [*shots, *row["prompt"]], "answer": row["answer"]}
        question = f"Tell me a story about {('a cat', 'a ship', 'a king', 'the rain')[step % 4]}."
        yield {"prompt": [{"role": "user", "content": question}], "answer": "none"}


# --- both sides ----------------------------------------------------------------------------------


class Peer:
    """The other process; ``step`` runs one step of it."""

    def __init__(self, case: Case, spec: dict[str, Any], folder: Path) -> None:
        file = folder / "case.json"
        file.write_text(
            json.dumps({"spec": spec, "steps": case.steps, "folder": str(folder / "trl")})
        )
        self._log_path = folder / "trl.log"
        self._log = self._log_path.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.trl_peer", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=models.QUICKSTART.parents[2],
            text=True,
        )
        self._read()
        self.steps: list[dict[str, Any]] = []

    def step(self) -> None:
        number = len(self.steps)
        threads = 1 if number % 2 == 0 else os.cpu_count() or 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"threads": threads}) + "\n")
        self._process.stdin.flush()
        self.steps.append(self._read())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._log_path.read_text(errors="replace").splitlines()[-20:]
            raise RuntimeError("TRL's process ended:\n" + "\n".join(tail))
        message: dict[str, Any] = json.loads(line)
        return message


def measure(case: Case) -> tuple[Side, Side, dict[str, float]]:
    """Ours, the peer, and what ours reports beside."""
    with tempfile.TemporaryDirectory(prefix="bench-grpo-") as name:
        folder = Path(name)
        data = folder / "data.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in case.rows))
        spec = case.spec | {"dataset": {"path": str(data), "shuffle": False}}
        peer = Peer(case, spec, folder)
        try:
            ours = paused_job.run(_parse(spec), str(folder / "run"), peer.step)
        finally:
            peer.close()
    return _our_side(ours[case.warmup :]), _peer_side(peer.steps[case.warmup :]), _facts(ours, case)


def _parse(spec: dict[str, Any]) -> Any:
    from rlhfless.spec_file import parse_spec

    return parse_spec(spec)


def _our_side(steps: list[dict[str, float]]) -> Side:
    return Side(
        seconds=_median(step["time/step_s"] for step in steps),
        mean_length=statistics.mean(step["response_length/mean"] for step in steps),
        longest=_median(step["response_length/max"] for step in steps),
        reward=_last_third([step["reward/mean"] for step in steps]),
    )


def _peer_side(steps: list[dict[str, Any]]) -> Side:
    """The better of its two numbers of threads."""
    by_threads: dict[int, list[float]] = {}
    for step in steps:
        by_threads.setdefault(step["threads"], []).append(step["seconds"])
    return Side(
        seconds=min(statistics.median(seconds) for seconds in by_threads.values()),
        mean_length=statistics.mean(statistics.mean(step["lengths"]) for step in steps),
        longest=_median(max(step["lengths"]) for step in steps),
        reward=_last_third([statistics.mean(step["rewards"]) for step in steps]),
    )


def _facts(steps: list[dict[str, float]], case: Case) -> dict[str, float]:
    counted = steps[case.warmup :]
    return {
        "rollout_s": _median(step["time/rollout_s"] for step in counted),
        "train_s": _median(step["time/train_s"] for step in counted),
        "overhead_s": _median(step["time/overhead_s"] for step in counted),
        "overhead_share": _median(s["time/overhead_s"] / s["time/step_s"] for s in counted),
        "idle_fraction": _median(step["functions/idle_fraction"] for step in counted),
    }


def _median(values: Any) -> float:
    return float(statistics.median(values))


def _last_third(values: list[float]) -> float:
    return statistics.mean(values[-max(1, len(values) // 3) :])


# --- report --------------------------------------------------------------------------------------


def run_case(case: Case) -> tuple[list[Result], dict[str, Any]]:
    ours, peer, facts = measure(case)
    results = [
        Result.time(case.name, ours.seconds, peer.seconds),
        Result.time(
            f"{case.name}: overhead against its target",
            facts["overhead_share"],
            OVERHEAD_TARGET,
            "of step",
        ),
    ]
    for result in results:
        print(result)
    for name, side in (("ours", ours), ("TRL", peer)):
        print(
            f"    {name:<5} mean length {side.mean_length:.1f}, longest {side.longest:.0f}, "
            f"reward at the end {side.reward:.3f}"
        )
    print(
        f"    rollout {facts['rollout_s']:.3f} s, training {facts['train_s']:.3f} s, overhead "
        f"{1e3 * facts['overhead_s']:.1f} ms ({facts['overhead_share']:.1%}), functions idle "
        f"{facts['idle_fraction']:.0%}",
        flush=True,
    )
    return results, facts | {
        f"{name}_{key}": value
        for name, side in (("ours", ours), ("peer", peer))
        for key, value in vars(side).items()
    }


def main(options: argparse.Namespace) -> None:
    if importlib.util.find_spec("trl") is None:
        sys.exit("this benchmark runs beside TRL: pip install 'rlhfless[bench]'")
    chosen = [
        case
        for case in cases(options.quick)
        if not options.cases or any(word in case.name for word in options.cases)
    ]
    for name, how in (("quickstart", "quickstart.make"), ("smollm2", "smollm2.fetch")):
        if name not in models.available():
            print(f"{name}: skipped, its model is not here; python -m examples.{how}")
    results: list[Result] = []
    facts: dict[str, Any] = {}
    for case in chosen:
        found, facts[case.name] = run_case(case)
        results += found
    if not results:
        sys.exit("nothing to measure")
    import trl

    common.report(results, options.json, trl=trl.__version__, cases=facts)


if __name__ == "__main__":
    parser = common.arguments("GRPO: seconds of a step beside TRL.", threads=False)
    parser.add_argument("--cases", nargs="*", help="only cases whose name has one of these words")
    main(parser.parse_args())
