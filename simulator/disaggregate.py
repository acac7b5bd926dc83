"""Accelerators of their own for training and scoring: how serverful frameworks disaggregate a job.

Where training has a pool that rollout can do without, it keeps that pool. Otherwise training gets
what the cluster file says, or as few accelerators as it fits on, but at most half of its pool; each
scorer (reference, reward models) gets up to an eighth, one instance at least; rollout gets the
rest. Half and half is the split that disaggregated frameworks start from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlhfless.errors import UserError
from rlhfless.messages import FunctionName
from rlhfless.spec import JobSpec
from rlhfless.spec_file import parse_spec
from simulator.cluster import Cluster, Pool
from simulator.cluster_file import PlacementSpec
from simulator.model_shape import ModelShape, load_shape
from simulator.roofline import Layout
from simulator.room import on_accelerators, per_instance, trainable_share

TRAINING_SHARE = 2
SCORER_SHARE = 8
"""Of a pool: one part in so many."""


def set_apart(spec: JobSpec, cluster: Cluster) -> tuple[JobSpec, Cluster]:
    """The job with as many instances as there is room for beside each other, and the cluster with
    placements that keep them apart. Accelerators without limits are nobody's own: nothing changes
    there. Raises ``UserError`` where the cluster is too small."""
    if cluster.sharing == "unlimited":
        return spec, cluster
    shape = load_shape(spec.model.path, spec.model.dtype)
    free = {pool.name: pool.accelerators for pool in cluster.pools.values()}
    bounds: dict[FunctionName, int] = {}
    placements = dict(cluster.placements)
    for function in on_accelerators(spec):
        if function not in ("training", "rollout"):
            pool = cluster.pools_for(function)[0]
            size = per_instance(function, spec, cluster, pool, shape)
            most = max(1, pool.accelerators // SCORER_SHARE // size)
            bounds[function] = min(spec.function(function).max_instances, most)
            free[pool.name] -= bounds[function] * size
            placements[function] = _placed(cluster, function, [pool])

    home = cluster.pools_for("training")[0]
    elsewhere = [pool for pool in cluster.pools_for("rollout") if pool.name != home.name]
    half = home.accelerators // TRAINING_SHARE
    most = free[home.name] if elsewhere else min(free[home.name], half)
    layout = _layout(spec, cluster, home, shape, most)
    free[home.name] -= layout.accelerators
    placements["training"] = _placed(cluster, "training", [home], layout.data)

    pools = elsewhere or [home]
    sizes = {pool.name: per_instance("rollout", spec, cluster, pool, shape) for pool in pools}
    room = sum(free[name] // size for name, size in sizes.items())
    if room < 1:
        raise _too_small(cluster, pools[0], "nothing is left of it for rollout")
    bounds["rollout"] = min(spec.rollout.max_instances, room)
    placements["rollout"] = _placed(cluster, "rollout", pools)

    raw: dict[str, Any] = spec.model_dump()
    for function, bound in bounds.items():
        raw[function]["max_instances"] = bound
    return parse_spec(raw), replace(cluster, placements=placements, sharing="exclusive")


def _layout(spec: JobSpec, cluster: Cluster, pool: Pool, shape: ModelShape, most: int) -> Layout:
    """On at most ``most`` accelerators: as placed if that is not too many, else with as many
    data-parallel ranks as there is room for."""
    tokens, share = spec.training.tokens_per_microbatch, trainable_share(spec, shape)
    asked = cluster.placements.get("training", PlacementSpec())
    unbound = asked.model_copy(update={"data_parallel": None})
    anyhow = replace(cluster, placements={**cluster.placements, "training": unbound})
    smallest = anyhow.plan_training(pool, shape, tokens, share)
    if smallest.accelerators > most:
        needs = f"training needs {smallest.accelerators} of its {pool.accelerators} accelerators"
        raise _too_small(cluster, pool, f"{needs}, and may have {max(most, 0)} beside the others")
    if asked.data_parallel is None:
        return smallest
    each = smallest.tensor * smallest.pipeline
    return replace(smallest, data=min(asked.data_parallel, most // each))


def _placed(
    cluster: Cluster, function: FunctionName, pools: list[Pool], data_parallel: int | None = None
) -> PlacementSpec:
    names = [pool.name for pool in pools]
    placement = cluster.placements.get(function, PlacementSpec())
    return placement.model_copy(update={"pools": names, "data_parallel": data_parallel})


def _too_small(cluster: Cluster, pool: Pool, why: str) -> UserError:
    return UserError(
        f"disaggregated: cluster {cluster.name} is too small in pool {pool.name}: {why}",
        param=f"pools.{pool.name}.nodes",
        hint=f"try pools.{pool.name}.nodes={2 * pool.nodes}, or the strategy static",
    )
