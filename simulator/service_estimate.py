"""Estimates for the service: totals, and the settings worth considering, as REST documents.

A simulation takes seconds of a core and memory by the job's size, so the service has it done in a
process of its own (``estimate_apart``) with bounds on both:

    python -m simulator.service_estimate

reads ``{"spec": ..., "cluster": ...}`` and prints ``{"estimate": ...}`` or ``{"problem": ...}``. It
runs in an empty folder: a model's name is never taken for a path of where the service was started.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from rlhfless import rest
from rlhfless.errors import CapacityError, InternalError, RlhflessError, UserError, from_problem
from rlhfless.spec import JobSpec
from simulator.cluster import ClusterFile
from simulator.known_clusters import default_cluster, find_cluster, known_clusters
from simulator.result import Simulation, Use
from simulator.sampling import FEWEST
from simulator.scenario_file import Scenarios
from simulator.simulate import Options, simulate
from simulator.strategies import apply
from simulator.sweep import Axis, SweepPoint, changed, rank

TIMEOUT_S = 60.0
"""Of a whole estimate; a usual one takes 3 to 10 s."""
SWEEP_S = 8.0
"""After so long no further point of the frontier is begun."""
MEMORY_BYTES = 4 << 30
WEIGHT, INSTANCES = "objective.time_weight", "rollout.max_instances"
WEIGHTS = (0.0, 0.5, 1.0)
_TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def estimate_apart(spec: JobSpec, cluster: str | None) -> rest.Estimate:
    """``estimate_document`` in a process of its own. Blocks. Raises what it raises, and
    ``UserError`` for a job that is too large to be estimated within the bounds."""
    # What speaks to others plays no part, and its secrets stay here.
    asked = {
        "spec": spec.model_dump(mode="json", exclude={"integrations", "webhooks"}),
        "cluster": cluster,
    }
    path = os.pathsep.join(filter(None, (_TREE, os.environ.get("PYTHONPATH", ""))))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    hint = "estimate fewer steps or prompts, or use rlhfless simulate on a machine of your own"
    with tempfile.TemporaryDirectory(prefix="rlhfless-estimate-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "simulator.service_estimate"],
                input=json.dumps(asked).encode(),
                capture_output=True,
                timeout=TIMEOUT_S,
                cwd=folder,
                env={**os.environ, **threads, "PYTHONPATH": path},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"the estimate takes longer than {TIMEOUT_S:g} s", hint=hint) from error
    try:
        said = json.loads(done.stdout)
    except ValueError:
        if b"MemoryError" in done.stderr or done.returncode < 0:
            raise UserError("the estimate takes more memory than it may", hint=hint) from None
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing said"]
        raise InternalError(f"the estimate ended with {done.returncode}: {lines[-1]}") from None
    if "problem" in said:
        raise from_problem(said["problem"])
    return rest.Estimate.model_validate(said["estimate"])


def estimate_document(
    spec: JobSpec, cluster: str | None, now: Callable[[], float] = time.monotonic
) -> rest.Estimate:
    """What the job takes on a known cluster (None: as ``rlhfless estimate`` chooses), with a
    frontier of what ``objective.time_weight`` and ``rollout.max_instances`` can do about it.

    Raises ``UserError`` for a cluster that is not known and for what cannot work.
    """
    if cluster is not None and cluster not in known_clusters():
        raise UserError(
            f"there is no cluster {cluster[:80]!r}",
            param="cluster",
            hint=f"one of {', '.join(known_clusters())}",
        )
    on = default_cluster(spec) if cluster is None else find_cluster(cluster)
    scenarios = Scenarios()
    began_s = now()
    own = _simulated(spec, on, scenarios, {})
    points = [SweepPoint("job", _settings(spec), own)]
    assumptions = list(own.assumptions)
    wanted = list(_grid(spec))
    for number, values in enumerate(wanted):
        if now() - began_s > SWEEP_S:
            left = len(wanted) - number
            assumptions.append(f"the frontier leaves {left} of {len(wanted) + 1} settings out")
            break
        try:
            points.append(SweepPoint("job", values, _simulated(spec, on, scenarios, values)))
        except UserError:
            continue  # settings that cannot work on this cluster are not worth considering
    axes = [Axis(WEIGHT, WEIGHTS), Axis(INSTANCES, ())]
    ranked = rank(axes, points)
    return rest.Estimate(
        cluster=own.cluster,
        total_steps=own.steps,
        step_s=own.step_s,
        wall_s=own.seconds,
        held_s=own.held_s,
        usd=own.usd,
        functions={name: _spent(use) for name, use in own.usage.items()},
        frontier=[_point(points[index]) for index in ranked.frontier],
        assumptions=assumptions,
    )


def _simulated(
    spec: JobSpec, cluster: ClusterFile, scenarios: Scenarios, values: dict[str, Any]
) -> Simulation:
    job, on = apply("job", *changed(spec, cluster, values))
    return simulate(
        job,
        on,
        scenarios.of(job),
        strategy=job.scheduling.strategy,
        options=Options(seed=job.seed, max_steps=FEWEST),
    )


def _settings(spec: JobSpec) -> dict[str, Any]:
    return {WEIGHT: spec.objective.time_weight, INSTANCES: spec.rollout.max_instances}


def _grid(spec: JobSpec) -> Iterator[dict[str, Any]]:
    """Settings beside the job's own. Numbers of instances come first: they matter most."""
    most, weight = spec.rollout.max_instances, spec.objective.time_weight
    for instances in dict.fromkeys((most // 2, 2 * most, most // 4, most)):
        for each in dict.fromkeys((weight, *WEIGHTS)):
            if instances and (instances, each) != (most, weight):
                yield {WEIGHT: each, INSTANCES: instances}


def _spent(use: Use) -> rest.Spent:
    return rest.Spent(
        held_s=use.held_s, busy_s=use.busy_s, idle_s=use.idle_s, cold_s=use.cold_s, usd=use.usd
    )


def _point(point: SweepPoint) -> rest.EstimatePoint:
    found = point.simulation
    return rest.EstimatePoint(
        settings=dict(point.values), wall_s=found.seconds, held_s=found.held_s, usd=found.usd
    )


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)  # the service's own work comes first
    asked = json.load(sys.stdin)
    try:
        spec = JobSpec.model_validate(asked["spec"])
        found = estimate_document(spec, asked["cluster"])
        said: dict[str, Any] = {"estimate": found.model_dump(mode="json")}
    except RlhflessError as error:
        said = {"problem": error.to_problem()}
    except MemoryError:
        limit = CapacityError("the estimate takes more memory than it may")
        said = {"problem": limit.to_problem()}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
