"""Simulations of published set-ups, next to the published numbers.

    python -m benchmarks.papers [--quick] [--steps N] [--json FILE] [--docs FILE] [--only WORD ...]

Every row is a simulation of the whole system by the real controller; the first row of a table is
the serverful baseline (``static``), the others are ours with one technique added to it, with one
taken away, and with all. No constant is fitted to any number printed here. ``docs/simulator.md``
says why numbers differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import common
from rlhfless.spec import JobSpec
from simulator.cluster import Cluster
from simulator.cluster_file import PlacementSpec
from simulator.known_clusters import find_cluster
from simulator.result import Simulation
from simulator.scenario_file import make_scenario
from simulator.simulate import Options, simulate
from simulator.strategies import apply
from simulator.workload_file import parse_workload

BEGIN, END = "<!-- papers -->", "<!-- end of papers -->"
ADDED = (
    "static+dedup_prefill",
    "static+stream_scoring",
    "static+early_release",
    "static+sorted+predict_lengths",
    "static+sorted+predict_lengths+early_release",
    "static+balanced+predict_lengths",
    "static+migrate+predict_lengths",
)
REMOVED = (
    "rlhfless-dedup_prefill",
    "rlhfless-predict_lengths",
    "rlhfless-scale_actors",
    "rlhfless-early_release",
    "rlhfless-migrate",
    "rlhfless-stream_scoring",
)
UNBOUND = ", max_slowdown: null"
"""A step may take longer than static scheduling's; else it may not (``objective.max_slowdown``)."""
WHOLE = (
    "disaggregated",
    "rlhfless",
    "rlhfless+time",
    f"rlhfless{UNBOUND}",
)
CHEAPEST = f"rlhfless+cost{UNBOUND}"


@dataclass(frozen=True)
class Setup:
    """A published set-up. ``published``: what is claimed for it, in words."""

    name: str
    cluster: str
    published: str
    strategies: tuple[str, ...]
    model: str
    algorithm: dict[str, Any]
    prompts: int
    max_tokens: int
    actors: int
    workload: dict[str, Any]
    tensor_parallel: int | None = None
    """Of rollout and reference; None: as few as the model fits on."""
    more: dict[str, Any] = field(default_factory=dict)

    def on(self) -> Cluster:
        cluster = find_cluster(self.cluster).cluster()
        if self.tensor_parallel is None:
            return cluster
        split = PlacementSpec(tensor_parallel=self.tensor_parallel)
        return replace(
            cluster, placements={**cluster.placements, "rollout": split, "reference": split}
        )

    def spec(self) -> JobSpec:
        raw: dict[str, Any] = {
            "name": "paper",
            "model": {"path": self.model, "dtype": "bfloat16"},
            "dataset": {"path": "published.jsonl"},
            "rewards": [{"python": "rules.py:score"}],
            "algorithm": self.algorithm,
            "rollout": {
                "max_tokens": self.max_tokens,
                "max_instances": self.actors,
                "accelerator": "cuda",
            },
            "reference": {"max_instances": self.actors, "accelerator": "cuda"},
            "training": {
                "prompts_per_step": self.prompts,
                "epochs": 3,
                "minibatches": 4,
                "accelerator": "cuda",
            },
        }
        for section, values in self.more.items():
            raw[section] = raw.get(section, {}) | values
        return JobSpec.model_validate(raw)


GRPO = {"name": "grpo", "group_size": 8, "kl": {"coefficient": 0.001}}
PPO = {"name": "ppo", "group_size": 1, "kl": {"coefficient": 0.001, "placement": "reward"}}
SHORT = {
    "prompts": 7473,
    "prompt_tokens": 1024,
    "lengths": {
        "median": 512,
        "between": 0.5,
        "within": 0.4,
        "tail_share": 0.03,
        "tail_index": 1.0,
    },
}
"""Prompts of 1,024 tokens and responses of up to 2,048; how long responses really were is not
published."""
MATH = {"prompts": 7473, "prompt_tokens": {"median": 200}, "preset": "long_tailed_math"}
RLHFLESS = "RLHFless: up to 44.8 % fewer GPU-seconds and 1.35x as fast as verl, of all its jobs"


def setups() -> Iterator[Setup]:
    for size, algorithm, prompts, name in (
        ("7B", GRPO, 64, "GRPO"),
        ("3B", GRPO, 64, "GRPO"),
        ("7B", PPO, 512, "PPO"),
        ("3B", PPO, 512, "PPO"),
    ):
        detailed = (size, name) in (("7B", "GRPO"), ("3B", "PPO"))
        yield Setup(
            name=f"16 L40S, Qwen2.5-{size}, {name}",
            cluster="l40s-16",
            published=RLHFLESS,
            strategies=("static", *(ADDED + REMOVED if detailed else ()), *WHOLE, CHEAPEST),
            model=f"Qwen2.5-{size}",
            algorithm=algorithm,
            prompts=prompts,
            max_tokens=2048,
            actors=16,
            workload=SHORT,
        )
    for model, degree in (("DeepSeek-LLM-7B", 1), ("Llama-2-70B", 4)):
        yield Setup(
            name=f"20 x 8 H100, {model}, GRPO",
            cluster="h100-160",
            published="RLHFless, simulated too: 38.7 % fewer GPU-seconds, 1.23x as fast",
            strategies=("static", *WHOLE),
            model=model,
            algorithm=GRPO,
            prompts=512,
            max_tokens=2048,
            actors=160 // degree,
            tensor_parallel=degree,
            workload=SHORT,
        )
    yield Setup(
        name="8 H100, Qwen2.5-7B, long-tailed mathematics, GRPO",
        cluster="h100-8",
        published="RollPacker: a step of verl is 72 % rollout, 5 % reward, 23 % training",
        strategies=("static", *WHOLE),
        model="Qwen2.5-7B",
        algorithm={"name": "grpo", "group_size": 8},
        prompts=64,
        max_tokens=16_384,
        actors=8,
        workload=MATH,
    )


def run(setup: Setup, strategy: str, steps: int) -> Simulation:
    spec = setup.spec()
    name = strategy.removesuffix(UNBOUND)
    if name != strategy:
        objective = spec.objective.model_copy(update={"max_slowdown": None})
        spec = spec.model_copy(update={"objective": objective})
    spec, cluster = apply(name, spec, setup.on())
    scenario = make_scenario(spec, given=parse_workload(setup.workload))
    return simulate(spec, cluster, scenario, strategy=strategy, options=Options(max_steps=steps))


def rows(setup: Setup, steps: int) -> Iterator[dict[str, Any]]:
    baseline: Simulation | None = None
    for strategy in setup.strategies:
        began = time.perf_counter()
        found = run(setup, strategy, steps)
        baseline = baseline or found
        share = {
            part: sum(s.stands_for * getattr(s, f"{part}_s") for s in found.simulated)
            / sum(s.stands_for * s.seconds for s in found.simulated)
            for part in ("rollout", "scoring", "train")
        }
        yield {
            "setup": setup.name,
            "strategy": strategy,
            "step_s": found.step_s,
            "speedup": baseline.seconds / found.seconds,
            "held_gpu_s": found.held_s / found.steps,
            "held_saved": 1 - found.held_s / baseline.held_s,
            "busy_gpu_s": found.busy_s / found.steps,
            "busy_saved": 1 - found.busy_s / baseline.busy_s,
            "rollout_s": sum(s.stands_for * s.rollout_s for s in found.simulated) / found.steps,
            "actors": sum(s.stands_for * s.actors for s in found.simulated) / found.steps,
            "moved": sum(s.stands_for * s.moved for s in found.simulated) / found.steps,
            **{f"{part}_share": value for part, value in share.items()},
            "took_s": time.perf_counter() - began,
        }


def table(setup: Setup, found: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        f"**{setup.name}** ({setup.published})",
        "",
        "| strategy | step, s | speed-up | GPU-s held a step | saved | rollout, s | actors "
        "| rollout / scoring / training |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['strategy']} | {row['step_s']:.1f} | {row['speedup']:.2f}x "
        f"| {row['held_gpu_s']:,.0f} | {100 * row['held_saved']:.1f} % | {row['rollout_s']:.1f} "
        f"| {row['actors']:.0f} | {100 * row['rollout_share']:.0f} / "
        f"{100 * row['scoring_share']:.0f} / {100 * row['train_share']:.0f} |"
        for row in found
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, fewer set-ups")
    parser.add_argument("--steps", type=int, default=10, help="steps to simulate of each job")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument("--docs", metavar="FILE", help="replace the tables in a page of docs")
    parser.add_argument("--only", nargs="*", default=(), help="set-ups whose name has one of these")
    options = parser.parse_args()
    steps = 6 if options.quick else options.steps
    wanted = [
        setup
        for setup in setups()
        if not options.only or any(word in setup.name for word in options.only)
    ]
    tables: list[str] = []
    results: list[dict[str, Any]] = []
    for setup in wanted[: 1 if options.quick else None]:
        found = []
        for row in rows(setup, steps):
            print(f"{setup.name}: {row['strategy']}, {row['took_s']:.1f} s", file=sys.stderr)
            found.append(row)
        results += found
        tables.append(table(setup, found))
        print(tables[-1], flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": common.machine(), "results": results}, file, indent=2)
    if options.docs:
        page = Path(options.docs)
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        body = "\n".join(tables)
        page.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
