"""From a job spec to how a platform runs its functions."""

from __future__ import annotations

import math

from controller.platforms.base import Deployment
from rlhfless.spec import JobSpec


def deployments(spec: JobSpec) -> list[Deployment]:
    """How the platform runs each function the job uses."""
    holds = not spec.scheduling.early_release  # as a serverful framework does
    return [
        Deployment(
            function=name,
            max_instances=(section := spec.function(name)).max_instances,
            threads=section.threads,
            idle_timeout_s=math.inf if holds else section.idle_timeout_s,
            accelerator=section.accelerator,
            price_usd_per_hour=section.price_usd_per_hour,
        )
        for name in spec.functions()
    ]
