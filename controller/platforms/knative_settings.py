"""What the operator says of the cluster: the file that the Helm chart mounts into the controller.

``RLHFLESS_KNATIVE_SETTINGS`` names it (YAML or JSON, camelCase as in the chart's values). A field
it does not know is refused by name.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from rlhfless.errors import UserError
from rlhfless.messages import FunctionName

SETTINGS_VARIABLE = "RLHFLESS_KNATIVE_SETTINGS"
Count = Annotated[int, Field(ge=0)]
_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class Resources(_Section):
    """As of a container; quantities as Kubernetes writes them."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Accelerator(_Section):
    """``count`` of them for a pod, by the device plugin's resource name."""

    resource: str = "nvidia.com/gpu"
    count: Count = 0


class Placement(_Section):
    """Which nodes a pod may run on."""

    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    priority_class_name: str = ""
    runtime_class_name: str = ""


class Spot(Placement):
    """A second Service of the same function on preemptible nodes, which is used first.
    ``max_instances``: of all the function's instances, how many may be there; 0: none."""

    max_instances: Count = 0


class FunctionPods(Placement):
    """How the pods of one function look. ``image``: with its digest."""

    image: str = Field(min_length=1)
    image_pull_secrets: list[str] = []
    service_account_name: str = ""
    accelerator: Accelerator = Accelerator()
    resources: Resources = Resources()
    env: dict[str, str] = {}
    env_from_secrets: list[str] = []
    spot: Spot = Spot()


class TokenSecret(_Section):
    """Where pods find the token that their callers must bear."""

    name: str = "rlhfless-function-token"
    key: str = "token"


class Owner(_Section):
    """The object that functions go with: when it is deleted, Kubernetes deletes them."""

    api_version: str = "apps/v1"
    plural: str = "deployments"
    kind: str = "Deployment"
    name: str = Field(min_length=1)


class KnativeSettings(_Section):
    """``release`` tells the functions of two installations in one namespace apart.

    ``request_timeout_s`` is the longest that a request may take; the cluster's own bound
    (``max-revision-timeout-seconds`` of ``config-defaults``) must not be lower. Rollouts hand over
    what is left before it; a training step must fit into it. ``start_timeout_s``: for a node, the
    image and the model. ``direct_steering``: changes to running calls go to the pod's own address,
    which network policies must allow; without it running calls are not changed.
    """

    namespace: _Name = "default"
    release: _Name = "rlhfless"
    functions: dict[FunctionName, FunctionPods]
    token_secret: TokenSecret = TokenSecret()
    owner: Owner | None = None
    request_timeout_s: int = Field(default=600, ge=30)
    start_timeout_s: int = Field(default=1800, ge=10)
    silence_s: float = Field(default=60.0, gt=5)
    initial_scale_zero: bool = True
    direct_steering: bool = True


def load_settings(path: str | None = None) -> KnativeSettings:
    """From ``path``, else from the file that the environment names. Raises ``UserError``."""
    path = path or os.environ.get(SETTINGS_VARIABLE, "")
    if not path:
        raise UserError(
            "the platform knative needs the file of its settings",
            hint=f"set {SETTINGS_VARIABLE}; the Helm chart does",
        )
    try:
        with open(path, encoding="utf-8") as file:
            return KnativeSettings.model_validate(yaml.safe_load(file))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg']}", param=where) from error
