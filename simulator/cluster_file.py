"""The cluster file: what a user writes about the machines a job could run on.

YAML; unknown fields are errors. ``simulator.cluster`` resolves it against the hardware facts. The
smallest one names a pool and nothing else::

    pools:
      gpus: {accelerator: H100, per_node: 8, nodes: 1}
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rlhfless.messages import FunctionName
from simulator.hardware import ANY_ZONE
from simulator.roofline import Recompute

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]

Sharing = Literal["time_shared", "exclusive", "unlimited"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class SpotSpec(Section):
    """Preemptible nodes of a pool."""

    share: Fraction = 1.0
    """Share of the pool's nodes that is preemptible, rounded to whole nodes."""
    preemptions_per_hour: NonNegative = 0.0
    """How often one node is taken away, on average (a Poisson process)."""
    notice_s: NonNegative = 30.0
    """Warning before it goes: AWS up to 120 s, GKE about 30 s."""
    return_s: NonNegative = 600.0
    """How long until a node that was taken away can be had again, on average."""
    trace: str | None = None
    """A CSV file of ``seconds,nodes``: so many preemptible nodes are there from then on. It goes
    before ``preemptions_per_hour`` and ``return_s``."""


class PoolSpec(Section):
    """Nodes of one kind."""

    accelerator: str
    """A name or alias of the hardware facts, e.g. ``L40S``."""
    per_node: Count = 1
    """Accelerators of a node."""
    nodes: int = 1
    zone: str = ANY_ZONE
    """Where prices are looked up."""
    price_usd_per_hour: NonNegative | None = None
    """Of one accelerator on demand; null: the facts' price, which may be unknown."""
    spot_price_usd_per_hour: NonNegative | None = None
    """Of one preemptible accelerator; null: the facts' price, which may be unknown."""
    spot: SpotSpec | None = None
    """Null: all nodes are on demand."""
    use_spot: bool = False
    """Let rollout run on the preemptible nodes as such; else they are taken, and paid, like those
    on demand. The strategy's ``+spot`` switches it on."""
    memory_gib: Positive | None = None
    """Of one accelerator; null: the facts'."""
    link: str | None = None
    """Link between accelerators of a node; null: the accelerator's usual one."""
    network: str | None = None
    """Link between nodes, per accelerator; null: the accelerator's usual one."""
    cold_start: str | None = None
    """Name of a cold start of the facts; null: the cluster's."""

    @field_validator("nodes")
    @classmethod
    def _not_empty(cls, nodes: int) -> int:
        if nodes < 1:
            raise ValueError("an empty pool: give it at least one node, or leave it out")
        return nodes

    @model_validator(mode="after")
    def _some_spot(self) -> PoolSpec:
        if self.use_spot and self.spot is None:
            raise ValueError("use_spot needs spot: say which nodes are preemptible, e.g. spot: {}")
        return self


class ObjectStoreSpec(Section):
    """Where weights, caches and batches lie between functions."""

    gb_per_s: Positive = 10.0
    """All transfers together."""
    gb_per_s_per_instance: Positive | None = None
    """Bound on one instance; null: only its network bounds it."""
    latency_ms: NonNegative = 20.0
    """Before the first byte."""
    node_cache: bool = False
    """Instances of a node share what one of them has read of a version's weights (a page cache, a
    volume of the node); else each reads them for itself."""


class PlacementSpec(Section):
    """Where the instances of one function run, and how many accelerators each takes."""

    pools: list[str] | None = None
    """Names of pools, the preferred one first; null: any."""
    tensor_parallel: Count | None = None
    """Accelerators that split a model; null: as few as it fits on."""
    data_parallel: Count | None = None
    """Training: ranks that share a step, with everything sharded over them (FSDP); null: as few
    as it fits on."""
    pipeline_parallel: Count = 1
    """Training: stages."""
    recompute: Recompute = "full"
    """Training: activations that the backward pass computes again."""


class VariationSpec(Section):
    """How far instances and calls are from the cost model."""

    noise: NonNegative = 0.0
    """Deviation of the logarithm of a rollout call's time, from call to call."""
    straggler_share: Fraction = 0.0
    """Share of the instances that are slow."""
    straggler_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """So many times slower."""


class ClusterSpec(Section):
    """A cluster."""

    name: str = "cluster"
    hardware: list[str] = []
    """Facts files merged over the built-in ones, relative to this file."""
    pools: dict[str, PoolSpec]
    object_store: ObjectStoreSpec = ObjectStoreSpec()
    cold_start: str = "warm_node"
    """Name of a cold start of the facts."""
    placements: dict[FunctionName, PlacementSpec] = {}
    """By function; one that is missing may run anywhere."""
    sharing: Sharing = "time_shared"
    """``time_shared``: an idle instance may be put to sleep, its weights in the host's memory, to
    make room for another function; ``exclusive``: an instance keeps its accelerators until it is
    let go; ``unlimited``: instances share accelerators freely, each at full speed, as processes
    that mostly wait share a machine's cores."""
    variation: VariationSpec = VariationSpec()

    @field_validator("pools", mode="before")
    @classmethod
    def _some_pool(cls, pools: Any) -> Any:
        if pools == {} or pools is None:
            raise ValueError("a cluster needs at least one pool")
        return pools

    @model_validator(mode="after")
    def _training_only(self) -> ClusterSpec:
        for function, placement in self.placements.items():
            ranks = (placement.data_parallel or 1) * placement.pipeline_parallel
            if function != "training" and ranks > 1:
                raise ValueError(
                    f"placements.{function}: data_parallel and pipeline_parallel are for training; "
                    "other functions run more instances instead"
                )
        return self
