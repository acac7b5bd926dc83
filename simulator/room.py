"""What of a cluster a job takes: how many of its instances there is room for."""

from __future__ import annotations

from dataclasses import replace

from rlhfless.errors import UserError
from rlhfless.messages import FunctionName
from rlhfless.spec import JobSpec
from simulator.cluster import Cluster, Pool
from simulator.cluster_file import PlacementSpec
from simulator.model_shape import ModelShape


def on_accelerators(spec: JobSpec) -> tuple[FunctionName, ...]:
    """Functions whose instances take accelerators; rewards without a model run on the hosts."""
    return tuple(
        function
        for function in spec.functions()
        if function != "reward" or any(reward.model for reward in spec.rewards)
    )


def with_asked_accelerators(spec: JobSpec, cluster: Cluster) -> Cluster:
    """The cluster with each function kept to pools of the accelerator that the job asks for: a name
    of the hardware facts, or ``cuda`` for any but a CPU. ``cpu``, which is the default, asks for
    nothing. ``training.workers`` above 1 are the ranks of its data parallelism, whatever the
    cluster says. Raises ``UserError`` naming the field where there is none, with what there is, or
    where the cluster splits the model otherwise."""
    placements = dict(cluster.placements)
    for function in on_accelerators(spec):
        asked = spec.function(function).accelerator
        if asked == "cpu":
            continue
        param, pools = f"{function}.accelerator", cluster.pools_for(function)
        if asked == "cuda":
            kept = [pool.name for pool in pools if not pool.accelerator_name.startswith("cpu")]
        else:
            name = cluster.catalog.accelerator_name(asked, param)
            kept = [pool.name for pool in pools if pool.accelerator_name == name]
        if not kept:
            there = ", ".join(dict.fromkeys(pool.accelerator_name for pool in pools))
            raise UserError(
                f"{param}: cluster {cluster.name} has no {asked} for {function}; it has {there}",
                param=param,
                hint=f"--set {param}={pools[0].accelerator_name}, or a cluster with {asked}",
            )
        if len(kept) < len(pools):
            placed = cluster.placements.get(function, PlacementSpec())
            placements[function] = placed.model_copy(update={"pools": kept})
    if spec.training.workers > 1:
        placements["training"] = _with_workers(
            placements.get("training", PlacementSpec()), spec.training.workers
        )
    return replace(cluster, placements=placements)


def _with_workers(placed: PlacementSpec, workers: int) -> PlacementSpec:
    split = (placed.tensor_parallel or 1) * placed.pipeline_parallel
    if split > 1:
        raise UserError(
            f"training.workers is {workers}, each with a whole accelerator's share of the batch; "
            f"the cluster's placement of training splits a model over {split}",
            param="training.workers",
            hint="leave out placements.training.tensor_parallel and pipeline_parallel, or "
            "training.workers",
        )
    return placed.model_copy(update={"data_parallel": workers})


def per_instance(
    function: FunctionName, spec: JobSpec, cluster: Cluster, pool: Pool, shape: ModelShape
) -> int:
    """Accelerators of one instance of any function but training. Raises ``UserError`` where it
    does not fit. A reward model counts like the policy."""
    # The longest prompt is not known here: of a context, a response of full length is.
    return cluster.plan_instance(function, pool, shape, spec.rollout.max_tokens)


def capacity(function: FunctionName, spec: JobSpec, cluster: Cluster, shape: ModelShape) -> int:
    """Instances that all the pools a function may run in hold, if nothing else runs there."""
    return sum(
        pool.nodes * (pool.per_node // per_instance(function, spec, cluster, pool, shape))
        for pool in cluster.pools_for(function)
    )


def room_notes(spec: JobSpec, cluster: Cluster, shape: ModelShape) -> list[str]:
    """Sentences where the job's ``max_instances`` and the cluster do not go together."""
    notes: list[str] = []
    if cluster.sharing == "unlimited":
        return notes
    for function in on_accelerators(spec):
        if function == "training":
            continue
        asked = spec.function(function).max_instances
        held = capacity(function, spec, cluster, shape)
        field = f"{function}.max_instances"
        if asked > held:
            notes.append(
                f"{field} is {asked}, but {cluster.name} holds {held} instances of {function}"
            )
        elif asked < held and function == "rollout":
            notes.append(
                f"{field} is {asked}; {cluster.name} could hold {held} (--set {field}={held})"
            )
    return notes


def trainable_share(spec: JobSpec, shape: ModelShape) -> float:
    """Share of the parameters that is trained."""
    training = spec.training
    if training.trainable == "full":
        return 1.0
    if training.trainable == "top_layers":
        embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
        return training.top_layers / shape.layers * (1 - embeddings / shape.parameters)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Adapters on queries and values, peft's default for Llama's kin.
    added = training.lora.rank * (2 * shape.hidden + q + kv) * shape.layers
    return added / shape.parameters
