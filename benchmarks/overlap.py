"""Seconds of a step with the update begun in the rollout's tail (``training.overlap``) and without.

    python -m benchmarks.overlap [--quick] [--json FILE]

Both sides are the same job, in turn: without, with, with, without, ... Same seeds, so the same
samples, and the first step must learn the same.

``paced rollout``: generation is slept (``benchmarks.paced``: four actors as fast as a 7B model on
an A100 each, lengths with a long tail), training is real: a small Llama, one thread. So the two do
not compete for cores, as they do not where each has its own accelerator.

``quickstart``: everything is real, rollout and training one thread each. They need two free cores
at least; on a machine with no more than two, what overlap saves is mostly taken by the competition.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import common, long_tail, models
from benchmarks.common import Result
from benchmarks.live_job import make
from benchmarks.paced.model import VOCABULARY
from benchmarks.paced.workloads import Recipe, record
from rlhfless.messages import FunctionName
from rlhfless.spec_file import parse_spec

ACTORS = 4
GROUP = 8
WARMUP = 2
"""First steps of a run that are not counted."""
_PACED: Mapping[FunctionName, str] = {
    "rollout": "benchmarks.paced.rollout:create",
    "reward": "benchmarks.paced.scoring:create_reward",
}
_STEADY = {"strategy": "custom", "scale_actors": False, "early_release": False, "migrate": False}
"""Both sides run the same actors from the first step to the last."""


@dataclass(frozen=True)
class Case:
    """``spec`` fields of the job; ``apps``: functions that are not the real ones."""

    name: str
    spec: dict[str, Any]
    rounds: int
    apps: Mapping[FunctionName, str] = field(default_factory=dict)


def cases(quick: bool, folder: Path) -> Iterator[Case]:
    steps, rounds = (4, 1) if quick else (8, 2)
    for minibatches, told in ((1, "one minibatch"), *(() if quick else ((4, "4 minibatches"),))):
        name = f"paced rollout, real training, {told}"
        yield Case(name, _paced(folder / told, steps, minibatches), rounds, _PACED)
    if not quick:
        yield Case("quickstart: long tail", _quickstart(folder, steps=12), rounds)


def _paced(folder: Path, steps: int, minibatches: int) -> dict[str, Any]:
    recipe = Recipe("long tail", prompts=16, group=GROUP, own_tokens=(24, 40), longest=400)
    recorded = record(recipe, folder)
    _write_weights(recorded.model, recipe.context)
    return {
        "model": {"path": str(recorded.model)},
        "dataset": {"path": str(recorded.data), "shuffle": False},
        "rewards": [{"python": "benchmarks.paced.scoring:paced", "name": "paced"}],
        "algorithm": {"name": "grpo", "group_size": GROUP},
        "rollout": {"max_tokens": recipe.longest, "max_instances": ACTORS},
        "training": {
            "steps": steps,
            "prompts_per_step": recipe.prompts,
            "minibatches": minibatches,
        },
        "scheduling": _STEADY,
    }


def _write_weights(folder: Path, context: int) -> None:
    """A random Llama of three million parameters, for training alone."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def _quickstart(folder: Path, steps: int) -> dict[str, Any]:
    prompts = 64
    data = folder / "quickstart.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in long_tail.rows(steps, prompts)))
    rewards = models.QUICKSTART.parent / "rewards.py"
    return {
        "model": {"path": str(long_tail.MODEL)},
        "dataset": {"path": str(data), "shuffle": False},
        "rewards": [{"python": f"{rewards}:exact_match"}],
        "algorithm": {"name": "grpo", "group_size": GROUP},
        "rollout": {"max_tokens": long_tail.MAX_TOKENS},
        "training": {"steps": steps, "prompts_per_step": prompts, "learning_rate": 2e-4},
        "scheduling": _STEADY,
    }


# --- a run ---------------------------------------------------------------------------------------


def measure(case: Case, folder: Path) -> tuple[Result, dict[str, dict[str, float]]]:
    """Ours is with overlap; medians over the counted steps of all rounds, by side."""
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    first: dict[bool, dict[str, float]] = {}
    for number in range(case.rounds):
        for overlap in (False, True) if number % 2 == 0 else (True, False):
            spec = {**case.spec, "training": {**case.spec["training"], "overlap": overlap}}
            place = folder / f"{number}-{overlap}"
            steps = [s.metrics for s in make(parse_spec(spec), str(place), case.apps).steps]
            first[overlap] = steps[0]
            found[overlap] += steps[WARMUP:]
    _check_same(first[False], first[True])
    without, ours = (_medians(found[overlap]) for overlap in (False, True))
    result = Result.time(case.name, ours["time/step_s"], without["time/step_s"])
    return result, {"without": without, "with": ours}


def _check_same(one: dict[str, float], other: dict[str, float]) -> None:
    for name in ("response_length/mean", "policy/grad_norm", "policy/entropy"):
        if abs(one[name] - other[name]) > 1e-3 * abs(one[name]):
            sys.exit(f"{name} of the first step is {one[name]} and {other[name]}: a bug")


_TOLD = (
    "time/step_s",
    "time/rollout_s",
    "time/train_s",
    "training/overlapped_share",
    "training/overlapped_s",
    "response_length/mean",
    "response_length/max",
)


def _medians(steps: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(step[name] for step in steps) for name in _TOLD}


# --- report --------------------------------------------------------------------------------------


def _told(side: str, facts: dict[str, float]) -> str:
    step_s, rollout_s, train_s, share, overlapped_s, mean, longest = (facts[n] for n in _TOLD)
    return (
        f"    {side:<8} step {step_s:.3f} s, rollout {rollout_s:.3f} s, training behind it "
        f"{train_s:.3f} s, beside it {overlapped_s:.3f} s ({share:.0%} of the tokens); "
        f"mean length {mean:.1f}, longest {longest:.0f}"
    )


def main(options: argparse.Namespace) -> None:
    results: list[Result] = []
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-overlap-") as name:
        for number, case in enumerate(cases(options.quick, Path(name))):
            result, sides = measure(case, Path(name) / f"runs-{number}")
            results.append(result)
            facts[case.name] = sides
            print(result)
            for side, found in sides.items():
                print(_told(side, found), flush=True)
    common.report(results, options.json, cases=facts)


if __name__ == "__main__":
    main(common.arguments("Overlap: seconds of a step.", threads=False).parse_args())
