"""A job's deployment as an operator's cluster offers it, pods or replicas. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from controller.platforms.base import Deployment
from controller.platforms.knative_settings import duration_s
from rlhfless.errors import UserError


class Offer(Protocol):
    """What an operator says of a function. ``count``: accelerators of an instance."""

    @property
    def count(self) -> int: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def scale_down_delay(self) -> str: ...


def as_offered(
    deployment: Deployment, offer: Offer | None, places: int, *, said_in: str, longest_idle_s: float
) -> Deployment:
    """The deployment with the accelerators and bounds that are there. ``places``: instances there
    may be; ``said_in``: where the operator says so; ``longest_idle_s``: in place of for ever.

    Raises ``UserError`` where the job asks for a function or an accelerator that is not here.
    """
    name = deployment.function
    if offer is None or not places:
        raise UserError(
            f"this cluster has no {name} function", hint=f"set functions.{name} in {said_in}"
        )
    if deployment.accelerator != "cpu" and not offer.count:
        raise UserError(
            f"the {name} function of this cluster has no accelerator",
            param=f"{name}.accelerator",
            hint=f"set it to cpu, or functions.{name}.accelerator in {said_in}",
        )
    idle_s = max(deployment.idle_timeout_s, duration_s(offer.scale_down_delay))
    return replace(
        deployment,
        max_instances=min(deployment.max_instances, places),
        concurrency=max(deployment.concurrency, offer.concurrency),
        idle_timeout_s=idle_s if math.isfinite(idle_s) else longest_idle_s,
        accelerator="cuda" if offer.count else "cpu",
    )
