"""From a job spec to how a platform runs its functions."""

from __future__ import annotations

import math
from collections.abc import Iterable

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from rlhfless.engines import PLAIN, DraftingOptions, EngineOptions
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
            engine=_engine(spec) if name == "rollout" else PLAIN,
            workers=spec.training.workers if name == "training" else 1,
        )
        for name in spec.functions()
    ]


def new_ledger(deployed: Iterable[Deployment]) -> Ledger:
    """Empty books for what is deployed."""
    deployed = list(deployed)
    return Ledger(
        prices={each.function: each.price_usd_per_hour for each in deployed},
        workers={each.function: each.workers for each in deployed},
    )


def _engine(spec: JobSpec) -> EngineOptions:
    lora = spec.training.lora.rank if spec.training.trainable == "lora" else 0
    drafting = spec.rollout.drafting
    return EngineOptions(
        name=spec.rollout.engine,
        tensor_parallel=spec.rollout.tensor_parallel,
        kv_cache_bytes=round(spec.rollout.kv_cache_gib * 2**30),
        max_batch=spec.rollout.max_batch,
        lora_rank=lora,
        drafting=None if drafting is None else DraftingOptions(**drafting.model_dump()),
        kv_store=spec.scheduling.prefix_cache,
    )
