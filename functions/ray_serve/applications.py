"""What the agent has Serve do: applications made, changed, removed, and told of. Blocking.

An application's Serve version is the digest of all that its replicas are made with, so that a
change of its bounds or of its holder leaves replicas that run alone.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import time
from typing import Any

import msgspec
import ray
from ray import serve
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.serve.config import AutoscalingConfig
from ray.serve.context import _get_global_client

from functions.ray_serve.replica import DEPLOYMENT
from rlhfless import __version__
from rlhfless.errors import CapacityError, InternalError
from rlhfless.ray_apps import (
    RayApp,
    RayAppState,
    RayReplica,
    RayState,
    ReplicaPhase,
    Resources,
    agent_name,
)

METRICS_S = 0.5
"""How often Serve's routers tell how many calls there are; its own 10 s are as long as a step."""
_LOOK_BACK_S = 1.0
_HEALTH_S = 2.0
_START_ATTEMPTS = 3
_SETTLE_S = 30.0
_Told = dict[str, Any]


def deploy(wanted: RayApp, *, take: bool) -> bool:
    """Returns when Serve has it, before there are replicas; False: somebody else holds it, and it
    is not to be taken over. Raises ``InternalError``."""
    if not take and _holder(wanted.name) != wanted.holder:
        return False
    function = msgspec.json.encode(wanted.function)
    made_with = msgspec.json.encode(
        [wanted.function, wanted.resources, wanted.attempt, __version__]
    )
    most = max(1, wanted.max_replicas)
    deployment = DEPLOYMENT.options(
        name=wanted.function.function,
        version=hashlib.sha256(made_with).hexdigest()[:16],
        max_ongoing_requests=wanted.function.concurrency,
        user_config={"holder": wanted.holder, "job": wanted.job},
        autoscaling_config=AutoscalingConfig(
            min_replicas=min(wanted.warm, most),
            max_replicas=most,
            target_ongoing_requests=wanted.function.concurrency,
            metrics_interval_s=METRICS_S,
            look_back_period_s=_LOOK_BACK_S,
            aggregation_function="max",
            upscale_delay_s=0,
            downscale_delay_s=wanted.idle_s,
        ),
        ray_actor_options=_options(wanted.resources),
        health_check_period_s=_HEALTH_S,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=wanted.grace_s,
        max_constructor_retry_count=_START_ATTEMPTS,
        _internal=True,  # for the version, which Serve else makes up
    )
    target = serve.RunTarget(
        target=deployment.bind(function, msgspec.json.encode(wanted.resources)),
        name=wanted.name,
        route_prefix=wanted.route,
    )
    try:
        serve.run_many([target], wait_for_applications_running=False)
    except RuntimeError as error:  # what Serve raises for whatever it does not want
        raise InternalError(f"Ray Serve does not take {wanted.name}: {error}") from error
    give_up_s = time.monotonic() + _SETTLE_S
    while _holder(wanted.name) != wanted.holder:  # Serve's next round tells who holds it
        if time.monotonic() > give_up_s:
            raise CapacityError(f"Ray Serve has not made {wanted.name} within {_SETTLE_S:g} s")
        time.sleep(0.02)
    return True


def _options(resources: Resources) -> _Told:
    options: _Told = {"num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus}
    if resources.memory_bytes:
        options["memory"] = resources.memory_bytes
    if resources.custom:
        options["resources"] = dict(resources.custom)
    if resources.accelerator_type:
        options["accelerator_type"] = resources.accelerator_type
    return options


def delete(name: str, holder: str, *, force: bool) -> bool:
    """Have it go; returns before it is gone. False: somebody else has taken it over. ``force``: its
    replicas end at once, whatever they serve. Those without a node end at once in any case: Serve
    would wait for them to be placed, so that they can be asked to end."""
    found = _details()["applications"].get(name)
    if found is None:
        return True
    going = _word(found["status"]) == "DELETING"
    if not going and _user_config(found).get("holder", "") != holder:
        return False
    serve.delete(name, _blocking=False)
    for replica in _replicas(found):
        if force or not replica.get("node_id"):
            _kill(replica)
    return True


def _replicas(app: _Told) -> list[_Told]:
    return [replica for told in app["deployments"].values() for replica in told["replicas"]]


def _kill(replica: _Told) -> None:
    with contextlib.suppress(ValueError):  # it has ended in the meantime
        ray.kill(ray.get_actor(replica["actor_name"], namespace=SERVE_NAMESPACE))


def _holder(name: str) -> str:
    found = _details()["applications"].get(name)
    return "" if found is None else _user_config(found).get("holder", "")


def state(release: str) -> RayState:
    """What there is. Replicas that Serve no longer wants before Ray has placed them are ended, too:
    else Ray would look for a node for them, or have one added."""
    prefix = agent_name(release) + "-"
    details = _details()["applications"].items()
    ours = {name: told for name, told in details if name.startswith(prefix)}
    for told in ours.values():
        for replica in _replicas(told):
            if _word(replica["state"]) == "STOPPING" and not replica.get("node_id"):
                _kill(replica)
    apps = [_app_state(name, told) for name, told in ours.items()]
    return RayState(version=__version__, ray_version=ray.__version__, apps=apps, largest=_largest())


def _app_state(name: str, told: _Told) -> RayAppState:
    trouble, failing, replicas = "", False, []
    for deployment in told["deployments"].values():
        replicas += [_replica(replica) for replica in deployment["replicas"]]
        failing = failing or (
            _word(deployment["status"]) in ("UNHEALTHY", "DEPLOY_FAILED")
            and _word(deployment["status_trigger"]) == "REPLICA_STARTUP_FAILED"
        )
        trouble = trouble or str(deployment["message"])
    config = _user_config(told)
    return RayAppState(
        name=name,
        job=config.get("job", ""),
        holder=config.get("holder", ""),
        trouble=trouble or str(told["message"]),
        failing=failing,
        replicas=replicas,
    )


def _replica(told: _Told) -> RayReplica:
    return RayReplica(
        id=told["replica_id"],
        phase=_phase(_word(told["state"]), told.get("node_id")),
        pid=told.get("pid") or 0,
    )


def _phase(state: str, node: str | None) -> ReplicaPhase:
    match state:
        case "RUNNING" | "UPDATING":
            return "ready"
        case "PENDING_MIGRATION":
            return "leaving"
        case "STOPPING":
            return "stopping"
        case _:
            return "cold" if node else "waiting"


def _word(told: object) -> str:
    return str(told.value if isinstance(told, enum.Enum) else told)


def _user_config(told: _Told) -> dict[str, str]:
    for deployment in told["deployments"].values():
        config = deployment["deployment_config"].get("user_config")
        if isinstance(config, dict):
            return config
    return {}


def _details() -> _Told:
    """Of all applications of the cluster, as Serve's REST API tells them."""
    client = _get_global_client()
    assert client is not None, "the agent is an application of Serve"
    details: _Told = client.get_serve_details()
    return details


def _largest() -> dict[str, float]:
    largest: dict[str, float] = {}
    for node in ray.nodes():
        if node["Alive"]:
            for name, amount in node["Resources"].items():
                if not name.startswith(("node:", "object_store")):
                    largest[name] = max(amount, largest.get(name, 0.0))
    return largest
