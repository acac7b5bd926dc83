"""Clusters that come with the package, by name, and the one a job is estimated on."""

from __future__ import annotations

import os
from importlib.resources import as_file, files

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from simulator.cluster import ClusterFile, read_cluster

THIS_MACHINE = "this-machine"
GPUS = "h100-8"


def known_clusters() -> list[str]:
    """Names that ``find_cluster`` takes."""
    folder = files("simulator") / "clusters"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir())


def find_cluster(named: str) -> ClusterFile:
    """A cluster file, or the name of a known cluster. Raises ``UserError`` where it is neither."""
    if named in known_clusters() and not os.path.isfile(named):
        with as_file(files("simulator") / "clusters" / f"{named}.yaml") as path:
            return read_cluster(str(path))
    if os.path.splitext(named)[1] or os.path.exists(named):
        return read_cluster(named)
    raise UserError(
        f"there is no cluster file {named}, nor a known cluster of that name",
        param="cluster",
        hint=f"known: {', '.join(known_clusters())}",
    )


def default_cluster(spec: JobSpec) -> ClusterFile:
    """This machine for a job on CPUs alone, else a node of eight H100."""
    on_cpu = all(spec.function(name).accelerator == "cpu" for name in spec.functions())
    return find_cluster(THIS_MACHINE if on_cpu else GPUS)
