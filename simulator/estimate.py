"""The quick answer: what a job takes on a cluster, from a few of its steps."""

from __future__ import annotations

from rlhfless.spec import JobSpec
from simulator.cluster import Cluster
from simulator.known_clusters import default_cluster
from simulator.result import Simulation
from simulator.sampling import FEWEST
from simulator.scenario import Scenario
from simulator.scenario_file import make_scenario
from simulator.simulate import Options, simulate
from simulator.strategies import apply


def estimate(
    spec: JobSpec, cluster: Cluster | None = None, scenario: Scenario | None = None
) -> Simulation:
    """What the job as it is written takes on ``cluster`` (None: ``default_cluster``), working on
    ``scenario`` (None: what the spec says, and assumptions).

    Raises ``UserError`` for what cannot work, naming the field of the spec or the cluster.
    """
    spec, cluster = apply("job", spec, cluster or default_cluster(spec).cluster())
    return simulate(
        spec,
        cluster,
        scenario or make_scenario(spec),
        strategy=spec.scheduling.strategy,
        options=Options(seed=spec.seed, max_steps=FEWEST),
    )
