"""Ways of running a job, by name: what ``--compare`` puts side by side.

A name is a base and changes to it, each switching one technique on (``+``) or off (``-``), read
from left to right: ``static``, ``static+dedup_prefill``, ``rlhfless-migrate+spot``. Everything is a
pure function of the name, the job and the cluster; what the job says of instances and limits stays
as it says. Techniques that need another bring it along, and go when it goes (``NEEDS``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from rlhfless.errors import UserError
from rlhfless.spec import Assignment, JobSpec
from rlhfless.spec_file import parse_spec
from simulator.cluster import Cluster
from simulator.disaggregate import set_apart
from simulator.hardware import unknown
from simulator.room import with_asked_accelerators

BASES: Mapping[str, str] = {
    "rlhfless": "every technique on, as the controller runs a job by default",
    "static": "every technique off, and functions time-share the accelerators, all instances held "
    "for the whole job: colocation in a serverful framework",
    "disaggregated": "static, but training and the scorers keep accelerators of their own and "
    "rollout gets the rest",
    "job": "as the job file says",
}
TECHNIQUES: Mapping[str, str] = {
    "dedup_prefill": "prefill a prompt once for its group",
    "prefix_cache": "share keys and values of prompts between instances",
    "predict_lengths": "plan with predicted response lengths",
    "scale_actors": "choose the number of actors by the objective",
    "early_release": "let instances go that have nothing left to do",
    "migrate": "move samples between actors while they stream",
    "stream_scoring": "score samples as they finish",
    "overlap": "begin the update while the rollout's tail still runs (training.overlap)",
    "spot": "run rollout on the cluster's preemptible nodes",
}
ASSIGNMENTS: tuple[str, ...] = get_args(Assignment)
"""Said with ``+``: who generates what."""
OBJECTIVES: Mapping[str, float] = {"time": 1.0, "cost": 0.0}
"""Said with ``+``: ``objective.time_weight``."""
NEEDS: Mapping[str, str] = {"prefix_cache": "dedup_prefill", "overlap": "stream_scoring"}

_SWITCHES = ("dedup_prefill", "prefix_cache", "predict_lengths", "scale_actors", "early_release",
             "migrate", "stream_scoring", "assignment")  # fmt: skip


def apply(name: str, spec: JobSpec, cluster: Cluster) -> tuple[JobSpec, Cluster]:
    """The job and the cluster under a strategy.

    Raises ``UserError`` for a name that is not known (with the nearest that is), for a technique
    the job does not allow, ``disaggregated`` on a cluster too small, ``+spot`` without preemptible
    nodes, and an accelerator the cluster does not have.
    """
    base, changes = _parse(name)
    cluster = with_asked_accelerators(spec, cluster)
    raw = spec.model_dump()
    scheduling, training = raw["scheduling"], raw["training"]
    if base != "job":
        fixed = {"strategy": "rlhfless" if base == "rlhfless" else "static"}
        scheduling = {k: v for k, v in scheduling.items() if k not in _SWITCHES} | fixed
        training["overlap"] = training["overlap"] and base == "rlhfless"
        # Which switches that comes to is the spec's business.
        scheduling = type(spec.scheduling).model_validate(scheduling).model_dump()
    for on, change in changes:
        if change in ASSIGNMENTS:
            scheduling |= {"strategy": "custom", "assignment": change}
        elif change in OBJECTIVES:
            raw["objective"]["time_weight"] = OBJECTIVES[change]
        elif change == "spot":
            cluster = _with_spot(cluster, on, name)
        else:
            for each in _together(change, on):
                section = training if each == "overlap" else scheduling
                section[each] = on
            scheduling["strategy"] = "custom"
    raw["scheduling"] = scheduling
    spec = _validated(raw, name)
    if base == "static" and cluster.sharing == "exclusive":
        cluster = replace(cluster, sharing="time_shared")
    return set_apart(spec, cluster) if base == "disaggregated" else (spec, cluster)


def check_names(names: list[str]) -> None:
    """Raises ``UserError`` for the first that is not a strategy's; before anything is simulated."""
    for name in names:
        _parse(name)


def _parse(name: str) -> tuple[str, list[tuple[bool, str]]]:
    base, *rest = re.split(r"([+-])", name.strip())
    if base not in BASES:
        raise unknown("strategy", base or repr(name), BASES, "strategy")
    changes = []
    for sign, change in zip(rest[::2], rest[1::2], strict=True):
        known = (*TECHNIQUES, *ASSIGNMENTS, *OBJECTIVES)
        if change not in known:
            raise unknown("technique", change or repr(change), known, f"strategy {name}")
        if sign == "-" and change not in TECHNIQUES:
            raise UserError(
                f"strategy {name}: {change} cannot be switched off; choose another with +",
                param="strategy",
            )
        changes.append((sign == "+", change))
    return base, changes


def _together(change: str, on: bool) -> list[str]:
    """A technique with what it needs, or with what needs it."""
    if on:
        return [change, NEEDS[change]] if change in NEEDS else [change]
    return [change, *(each for each, needed in NEEDS.items() if needed == change)]


def _with_spot(cluster: Cluster, on: bool, name: str) -> Cluster:
    preemptible = [pool.name for pool in cluster.pools_for("rollout") if pool.spot_nodes]
    if on and not preemptible:
        first = cluster.pools_for("rollout")[0].name
        raise UserError(
            f"strategy {name}: cluster {cluster.name} has no preemptible nodes for rollout; "
            f"pools.{first}.spot says which nodes are",
            param=f"pools.{first}.spot",
        )
    changed = {
        pool.name: replace(pool, use_spot=on and pool.name in preemptible)
        for pool in cluster.pools.values()
    }
    return replace(cluster, pools=changed)


def _validated(raw: dict[str, Any], name: str) -> JobSpec:
    try:
        return parse_spec(raw)
    except UserError as error:
        raise UserError(f"strategy {name}: {error.detail}", param=error.param) from None
