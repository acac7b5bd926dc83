"""What the cluster's operator says of functions: ``platform.yaml``, which the Helm chart renders.

``RLHFLESS_PLATFORM_FILE`` names it. It has the pods whole, as templates; the platform adds what
belongs to a job. A field that this release does not know is refused by name.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from rlhfless.errors import UserError
from rlhfless.messages import FunctionName

FILE_VARIABLE = "RLHFLESS_PLATFORM_FILE"
Object = dict[str, Any]
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def _checked_duration(text: str) -> str:
    duration_s(text)
    return text


Duration = Annotated[str, AfterValidator(_checked_duration)]
"""As Go writes it: ``90s``, ``30m``, ``1h30m``."""
Count = Annotated[int, Field(ge=0)]
_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]


def duration_s(text: str) -> int:
    """Raises ``ValueError`` for what is no duration in whole seconds."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"{text!r} is no duration such as 90s or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class Owner(_Section):
    """The object that functions go with: when it is deleted, Kubernetes deletes them."""

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    name: _Name


class Pool(_Section):
    """Pods of a function on one kind of nodes. ``template``: their metadata and spec."""

    name: Literal["spot", "on-demand"]
    max_instances: Count
    template: Object


class FunctionPods(_Section):
    """``count``: accelerators of a pod; ``scale_down_delay``: how long one without work stays at
    least, longer than the gap between two steps; ``ray``: resources of a worker, where this runs on
    Ray (``ray_settings.RayResources``)."""

    accelerator: str = "cpu"
    count: Count = 0
    accelerator_resource: str = "nvidia.com/gpu"
    concurrency: Annotated[int, Field(ge=1)] = 1
    max_instances: Count = 1
    scale_down_delay: Duration = "120s"
    pools: Annotated[list[Pool], Field(min_length=1)]
    ray: Object = {}


class RequestLimits(_Section):
    """``timeout_seconds``: the longest that a request may take; the cluster's own bound
    (``max-revision-timeout-seconds`` of ``config-defaults``) must not be lower. Rollouts hand over
    what is left before it; a training step must fit into it. ``progress_deadline``: for a node,
    the image and the model. ``initial_scale_zero``: whether the cluster allows new Services to
    have no pod. ``direct_steering``: whether changes to running calls may go to the pod's own
    address; without it running calls are not changed."""

    timeout_seconds: Annotated[int, Field(ge=10)] = 600
    response_start_timeout_seconds: Annotated[int, Field(ge=10)] = 300
    progress_deadline: Duration = "1800s"
    initial_scale_zero: bool = True
    direct_steering: bool = True


class Gang(_Section):
    """How training runs whose workers do not fit into one pod: not at all, as a Job of at most
    ``nodes`` pods that Kueue's LocalQueue ``kueue_queue`` admits, or on a Ray cluster."""

    gang: Literal["none", "kueue", "ray"] = "none"
    kueue_queue: str = ""
    nodes: Annotated[int, Field(ge=1)] = 8

    @model_validator(mode="after")
    def _has_a_queue(self) -> Gang:
        if self.gang == "kueue" and not self.kueue_queue:
            raise ValueError("gang kueue needs kueueQueue, the name of a LocalQueue")
        return self


class KnativeSettings(_Section):
    """``release`` tells the functions of two installations in one namespace apart; ``ray``: where
    Ray is (``ray_settings.RayPlace``), for gangs on it."""

    platform: Literal["knative"] = "knative"
    namespace: _Name
    release: _Name
    owner: Owner | None = None
    knative: RequestLimits = RequestLimits()
    training: Gang = Gang()
    ray: Object = {}
    functions: dict[FunctionName, FunctionPods]


def load_settings(path: str | None = None) -> KnativeSettings:
    """From ``path``, else from the file that the environment names. Raises ``UserError``."""
    path = path or os.environ.get(FILE_VARIABLE, "")
    if not path:
        raise UserError(
            "the platform knative needs the file that says how functions look",
            hint=f"set {FILE_VARIABLE}; the Helm chart does",
        )
    try:
        with open(path, encoding="utf-8") as file:
            return KnativeSettings.model_validate(yaml.safe_load(file))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg']}", param=where) from error
