"""What the operator says of functions on Ray: ``platform.yaml`` of a service, or a run's own.

A replica's resources are Ray's logical ones: what its nodes say they have, and not what a process
may really use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from controller.platforms.base import Deployment
from controller.platforms.knative_settings import Duration, KnativeSettings
from controller.platforms.offered import as_offered
from rlhfless.errors import UserError
from rlhfless.messages import FunctionName
from rlhfless.ray_apps import Resources

_GPU = "GPU"
_LONGEST_IDLE_S = 30 * 86400.0
_SERVE_PORT = 8000


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class RayPlace(_Section):
    """``address``: Ray's dashboard, whose job API starts our agent; empty: the agent is there, as
    part of a Serve config. ``serve_url``: Serve's HTTP proxy; empty: port 8000 of ``address``.
    ``start_timeout``: for a node, its image and the model. ``direct_steering``: whether changes to
    running calls may go to the replicas' own ports."""

    address: str = ""
    serve_url: str = ""
    start_timeout: Duration = "1800s"
    direct_steering: bool = True


class RayResources(_Section):
    """``accelerator_name``: what Ray calls the accelerators that ``count`` counts: ``GPU``, or a
    custom resource such as ``TPU`` or ``neuron_cores``. ``custom``: of each replica, besides."""

    cpus: Annotated[float, Field(ge=0)] = 1.0
    memory_gib: Annotated[float, Field(ge=0)] = 0.0
    accelerator_name: str = _GPU
    accelerator_type: str = ""
    custom: dict[str, float] = {}


class RayReplicas(_Section):
    """A function's replicas. ``count``: accelerators of one."""

    accelerator: str = "cpu"
    count: Annotated[int, Field(ge=0)] = 0
    concurrency: Annotated[int, Field(ge=1)] = 1
    max_instances: Annotated[int, Field(ge=0)] = 1
    scale_down_delay: Duration = "120s"
    resources: RayResources = RayResources()


class RaySettings(_Section):
    """``release`` tells the applications of two installations on one Ray cluster apart."""

    platform: Literal["ray"]
    release: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]
    ray: RayPlace = RayPlace()
    functions: dict[FunctionName, RayReplicas]


def load_settings(path: str) -> RaySettings:
    """Raises ``UserError``."""
    try:
        with open(path, encoding="utf-8") as file:
            settings = RaySettings.model_validate(yaml.safe_load(file))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg']}", param=where) from error
    serve_url(settings.ray)
    return settings


def settings_of_run(
    deployments: Sequence[Deployment], *, address: str, serve: str, release: str
) -> RaySettings:
    """For a run from the command line, whose job says itself what it wants: a CPU for an instance,
    or its accelerators (several where rollout splits the model)."""
    return RaySettings(
        platform="ray",
        release=release,
        ray=RayPlace(address=address, serve_url=serve),
        functions={
            d.function: RayReplicas(
                accelerator=d.accelerator,
                count=0 if d.accelerator == "cpu" else d.engine.tensor_parallel,
                max_instances=d.max_instances,
                scale_down_delay="0s",
            )
            for d in deployments
        },
    )


def settings_of_gangs(settings: KnativeSettings) -> RaySettings:
    """For training alone, beside other functions on Knative. Raises ``UserError``."""
    pods = settings.functions["training"]
    training = {
        "accelerator": pods.accelerator,
        "count": pods.count,
        "concurrency": pods.concurrency,
        "scale_down_delay": pods.scale_down_delay,
        "resources": pods.ray,
    }
    told = {
        "platform": "ray",
        "release": settings.release,
        "ray": settings.ray,
        "functions": {"training": training},
    }
    try:
        found = RaySettings.model_validate(told)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: {first['msg']}", param=where) from error
    serve_url(found.ray)
    return found


def serve_url(place: RayPlace) -> str:
    """Of Serve's proxy, without a slash at its end. Raises ``UserError``."""
    for url, name in ((place.address, "ray.address"), (place.serve_url, "ray.serveUrl")):
        if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise UserError(
                f"{url!r} is no address of Ray's dashboard",
                param=name,
                hint="such as http://HEAD:8265, as `ray job submit --address` wants it; not "
                "ray://, whose two ends would have to be of one version",
            )
    if place.serve_url:
        return place.serve_url.rstrip("/")
    if not place.address:
        raise UserError("one of ray.address and ray.serveUrl must be set", param="ray.address")
    host = urlsplit(place.address).hostname or ""
    return f"http://{f'[{host}]' if ':' in host else host}:{_SERVE_PORT}"


def as_here(deployment: Deployment, settings: RaySettings) -> Deployment:
    """The deployment as this cluster has it: its accelerators, its bounds.

    Raises ``UserError`` where the job asks for a function or an accelerator that is not here.
    """
    here = settings.functions.get(deployment.function)
    return as_offered(
        deployment,
        here,
        0 if here is None else here.max_instances,
        said_in="the platform's file",
        longest_idle_s=_LONGEST_IDLE_S,
    )


def resources_of(replicas: RayReplicas, workers: int = 1) -> Resources:
    """What Ray sets aside for a replica; for each of several ``workers``, who have one accelerator
    each."""
    wanted = replicas.resources
    count = min(replicas.count, 1) if workers > 1 else replicas.count
    of_gpu = wanted.accelerator_name == _GPU
    custom = dict(wanted.custom)
    if count and not of_gpu:
        custom[wanted.accelerator_name] = float(count)
    return Resources(
        num_cpus=wanted.cpus,
        num_gpus=float(count) if of_gpu else 0.0,
        memory_bytes=round(wanted.memory_gib * 2**30),
        custom=custom,
        accelerator_type=wanted.accelerator_type,
    )
