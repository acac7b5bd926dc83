"""A cluster, resolved: the cluster file with hardware facts, prices and links looked up.

``load_cluster`` reads a file; ``make_cluster`` takes the parsed one. Errors name the field and,
where they can, the nearest thing that would work. ``Cluster.plan_instance`` and ``plan_training``
say on how many accelerators a model runs in a pool, and refuse what does not fit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from rlhfless.errors import UserError
from rlhfless.messages import FunctionName
from rlhfless.spec_file import read_mapping, set_field, user_error
from simulator.cluster_file import (
    ClusterSpec,
    ObjectStoreSpec,
    PlacementSpec,
    PoolSpec,
    Sharing,
    SpotSpec,
    VariationSpec,
)
from simulator.hardware import Accelerator, Catalog, ColdStart, Price, load_catalog, unknown
from simulator.model_shape import ModelShape
from simulator.roofline import (
    Fabric,
    Layout,
    TrainingRoom,
    check_fits,
    smallest_tensor_parallel,
)


@dataclass(frozen=True)
class Pool:
    """Nodes of one kind. Prices: USD per hour of one accelerator; None: unknown."""

    name: str
    accelerator_name: str
    accelerator: Accelerator
    fabric: Fabric
    host_bytes_per_s: float
    """Between the host's memory and one accelerator."""
    per_node: int
    nodes: int
    spot_nodes: int
    spot: SpotSpec | None
    availability: tuple[tuple[float, int], ...]
    """Of the trace: (seconds, spot nodes from then on); empty: none was given."""
    on_demand_usd_per_hour: float | None
    spot_usd_per_hour: float | None
    cold_start: ColdStart
    use_spot: bool = False
    """Whether rollout may run on the preemptible nodes as such."""

    @property
    def accelerators(self) -> int:
        return self.per_node * self.nodes

    def usd_per_hour(self, spot: bool) -> float | None:
        return self.spot_usd_per_hour if spot else self.on_demand_usd_per_hour


@dataclass(frozen=True)
class Cluster:
    """Pools by name, and what they share."""

    name: str
    pools: Mapping[str, Pool]
    object_store: ObjectStoreSpec
    placements: Mapping[FunctionName, PlacementSpec]
    catalog: Catalog
    sharing: Sharing = "time_shared"
    variation: VariationSpec = field(default_factory=VariationSpec)

    def pools_for(self, function: FunctionName) -> list[Pool]:
        """Where instances of a function may run, the preferred pool first."""
        wanted = self.placements.get(function, PlacementSpec()).pools
        return [self.pools[name] for name in wanted or self.pools]

    def plan_instance(
        self, function: FunctionName, pool: Pool, shape: ModelShape, context_tokens: int
    ) -> int:
        """Accelerators of an instance that holds the model and at least one sequence of
        ``context_tokens``. Raises ``UserError`` with the nearest thing that would."""
        asked = self.placements.get(function, PlacementSpec()).tensor_parallel
        param = f"placements.{function}.tensor_parallel" if asked else f"pools.{pool.name}"
        fitting = smallest_tensor_parallel(shape, pool.accelerator, context_tokens, pool.per_node)
        degree = asked or fitting or 1
        if degree > pool.per_node:
            raise UserError(
                f"{param}: {degree} accelerators do not share a node; pool {pool.name} has "
                f"{pool.per_node} a node",
                param=param,
            )
        known = {**self.catalog.accelerators, pool.accelerator_name: pool.accelerator}
        check_fits(
            shape, pool.accelerator_name, known, degree, context_tokens, pool.per_node, param
        )
        return degree

    def plan_training(
        self, pool: Pool, shape: ModelShape, microbatch_tokens: int, trainable: float = 1.0
    ) -> Layout:
        """The layout of a training instance in a pool. Raises ``UserError`` where memory or
        accelerators are wanting, with the nearest thing that would do."""
        placement = self.placements.get("training", PlacementSpec())
        asked = Layout(
            data=placement.data_parallel or 1,
            tensor=placement.tensor_parallel or 1,
            pipeline=placement.pipeline_parallel,
            microbatch_tokens=microbatch_tokens,
            recompute=placement.recompute,
            trainable=trainable,
        )
        room = TrainingRoom(
            shape, pool.accelerator_name, pool.accelerator, pool.fabric, pool.accelerators
        )
        layout = room.smallest(asked) if placement.data_parallel is None else None
        if layout is None:
            room.check(asked, "placements.training")
        return layout or asked


@dataclass(frozen=True)
class ClusterFile:
    """What a cluster file says, before it is resolved; its paths are relative to ``base``."""

    raw: Mapping[str, Any]
    base: str = "."

    def cluster(self, changes: Mapping[str, Any] | None = None) -> Cluster:
        """The cluster, with fields changed by their dotted paths (``pools.gpus.nodes``)."""
        raw = deepcopy(dict(self.raw))
        for path, value in (changes or {}).items():
            section, _, rest = path.partition(".")
            if section == "pools" and isinstance(pools := raw.get("pools"), dict):
                known = [str(each) for each in pools]
                if (name := rest.split(".")[0]) not in known:
                    raise unknown("pool", name, known, f"cluster.{path}")
            set_field(raw, path, value, f"cluster.{path}={value}")
        return make_cluster(raw, self.base)


def read_cluster(path: str) -> ClusterFile:
    """Raises ``UserError`` for a file that cannot be read; what it says is checked later."""
    raw = read_mapping(path, "cluster file", "pools")
    raw.setdefault("name", os.path.splitext(os.path.basename(path))[0])
    return ClusterFile(raw, os.path.dirname(os.path.abspath(path)))


def load_cluster(path: str) -> Cluster:
    """Read and resolve a cluster file; its relative paths are relative to it."""
    return read_cluster(path).cluster()


def make_cluster(raw: dict[str, Any], base: str = ".") -> Cluster:
    """Validate and resolve the contents of a cluster file."""
    try:
        spec = ClusterSpec.model_validate(raw)
    except ValidationError as error:
        raise user_error(error, ClusterSpec, "cluster") from None
    catalog = load_catalog(os.path.normpath(os.path.join(base, each)) for each in spec.hardware)
    for function, placement in spec.placements.items():
        for name in placement.pools or ():
            if name not in spec.pools:
                raise unknown("pool", name, spec.pools, f"placements.{function}.pools")
    return Cluster(
        name=spec.name,
        pools={
            name: _pool(name, pool, spec.cold_start, catalog, base)
            for name, pool in spec.pools.items()
        },
        object_store=spec.object_store,
        placements=spec.placements,
        catalog=catalog,
        sharing=spec.sharing,
        variation=spec.variation,
    )


def _pool(name: str, spec: PoolSpec, cold_start: str, catalog: Catalog, base: str) -> Pool:
    at = f"pools.{name}"
    kind = catalog.accelerator_name(spec.accelerator, f"{at}.accelerator")
    accelerator = catalog.accelerators[kind]
    if spec.memory_gib is not None:
        accelerator = accelerator.model_copy(update={"memory_gib": spec.memory_gib})
    link = catalog.link(spec.link or accelerator.link, f"{at}.link")
    network = catalog.link(spec.network or accelerator.network, f"{at}.network")
    price = catalog.price(kind, spec.zone)
    start = f"{at}.cold_start" if spec.cold_start else "cold_start"
    return Pool(
        name=name,
        accelerator_name=kind,
        accelerator=accelerator,
        fabric=Fabric(link, network, spec.per_node),
        host_bytes_per_s=catalog.link(accelerator.host_link).bytes_per_s,
        per_node=spec.per_node,
        nodes=spec.nodes,
        spot_nodes=round(spec.spot.share * spec.nodes) if spec.spot else 0,
        spot=spec.spot,
        availability=_availability(spec, at, base),
        on_demand_usd_per_hour=_usd(spec.price_usd_per_hour, price, spot=False),
        spot_usd_per_hour=_usd(spec.spot_price_usd_per_hour, price, spot=True),
        cold_start=catalog.cold_start(spec.cold_start or cold_start, start),
        use_spot=spec.use_spot,
    )


def _usd(given: float | None, price: Price | None, spot: bool) -> float | None:
    if given is not None or price is None:
        return given
    known = price.spot if spot else price.on_demand
    return None if known is None else known.typical


def _availability(spec: PoolSpec, at: str, base: str) -> tuple[tuple[float, int], ...]:
    if spec.spot is None or spec.spot.trace is None:
        return ()
    param = f"{at}.spot.trace"
    path = os.path.normpath(os.path.join(base, spec.spot.trace))
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{param}: cannot read {path}: {error}", param=param) from error
    events: list[tuple[float, int]] = []
    for number, line in enumerate(lines, 1):
        seconds, _, nodes = line.partition(",")
        try:
            event = (float(seconds), int(nodes))
        except ValueError as error:
            if number == 1:
                continue  # a heading
            raise UserError(f"{param}: {path} line {number}: {line!r}", param=param) from error
        least_s = events[-1][0] if events else 0.0
        if event[1] < 0 or not least_s <= event[0] < math.inf:
            raise UserError(
                f"{param}: {path} line {number}: times must be finite and must not fall, nor "
                "anything be negative",
                param=param,
            )
        events.append(event)
    if not events:
        raise UserError(f"{param}: {path} holds no line of seconds,nodes", param=param)
    return tuple(events)
