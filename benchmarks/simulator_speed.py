"""How long simulations take, and how that grows with steps and samples.

    python -m benchmarks.simulator_speed [--quick] [--json FILE]

Each case runs in a process of its own, imports left out of its time, and reports its peak memory.
Steps of a long job are sampled as ``rlhfless simulate`` does by default.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import common

WORKLOAD = {"prompt_tokens": 512, "lengths": {"median": 512, "between": 0.5, "within": 0.4}}
GROUP = 8


@dataclass(frozen=True)
class Case:
    """``nodes`` of eight H100, one to a rollout instance."""

    name: str
    nodes: int
    steps: int
    samples: int
    strategy: str = "rlhfless"


CASES = (
    Case("16 GPUs, 100 steps of 512 samples", 2, 100, 512),
    Case("the same, static", 2, 100, 512, "static"),
    Case("ten times the steps", 2, 1000, 512),
    Case("twice the samples", 2, 100, 1024),
    Case("four times the samples", 2, 100, 2048),
    Case("128 GPUs, 1,000 steps of 4,096 samples", 16, 1000, 4096),
    Case("1,024 GPUs, 1,000 steps of 16,384 samples", 128, 1000, 16384),
)
QUICK = 2


def run(case: Case) -> dict[str, Any]:
    """In this process."""
    from rlhfless.spec import JobSpec
    from simulator.cluster import make_cluster
    from simulator.sampling import usual_steps
    from simulator.scenario_file import make_scenario
    from simulator.simulate import Options, simulate
    from simulator.strategies import apply
    from simulator.workload_file import parse_workload

    gpus = 8 * case.nodes
    spec = JobSpec.model_validate(
        {
            "name": "speed",
            "model": {"path": "Qwen2.5-7B", "dtype": "bfloat16"},
            "dataset": {"path": "nowhere.jsonl"},
            "rewards": [{"python": "rules.py:score"}],
            "algorithm": {"group_size": GROUP},
            "rollout": {"max_tokens": 2048, "max_instances": gpus, "accelerator": "cuda"},
            "training": {
                "prompts_per_step": case.samples // GROUP,
                "steps": case.steps,
                "accelerator": "cuda",
            },
        }
    )
    cluster = make_cluster(
        {
            "pools": {"gpus": {"accelerator": "H100", "per_node": 8, "nodes": case.nodes}},
            "placements": {"training": {"data_parallel": min(gpus, 64)}},
        }
    )
    began = time.perf_counter()
    spec, cluster = apply(case.strategy, spec, cluster)
    rows = max(8 * case.samples // GROUP, 4096)
    scenario = make_scenario(spec, given=parse_workload({**WORKLOAD, "prompts": rows}))
    made = time.perf_counter()
    found = simulate(spec, cluster, scenario, options=Options(max_steps=usual_steps(case.samples)))
    ended = time.perf_counter()
    return {
        **asdict(case),
        "seconds": ended - began,
        "scenario_s": made - began,
        "simulated": len(found.simulated),
        "step_s": (ended - made) / len(found.simulated),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "job_h": found.seconds / 3600,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first cases only")
    parser.add_argument("--json", metavar="FILE", help="write the results here")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(run(CASES[options.case])))
        return
    print("| case | seconds | steps simulated | s a step | peak GiB |\n|---|---|---|---|---|")
    results = []
    for number, case in enumerate(CASES[: QUICK if options.quick else None]):
        command = [sys.executable, "-m", "benchmarks.simulator_speed", "--case", str(number)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        one = json.loads(done.stdout)
        results.append(one)
        print(
            f"| {case.name} | {one['seconds']:.2f} | {one['simulated']} of {case.steps} "
            f"| {one['step_s']:.3f} | {one['peak_gib']:.2f} |",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": common.machine(), "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
