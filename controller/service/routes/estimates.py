"""What a job would take, before it is submitted."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from controller.service.gate import Gate
from controller.service.routes.common import IdempotencyKey, Submitter, answered, asked
from controller.service.routes.jobs import JOB_BODY, read_job
from controller.service.service import Service
from rlhfless import rest
from rlhfless.errors import NotFoundError
from rlhfless.spec import JobSpec

MAX_ESTIMATES = 2
"""At once on this replica; each is a core's work for some seconds."""

Cluster = Annotated[
    str | None, Query(description="A known cluster; default: this machine or a node of 8 H100.")
]


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/estimates", tags=["estimates"])
    gate = Gate("estimates", MAX_ESTIMATES)

    @routes.post("", response_model=rest.Estimate, openapi_extra=JOB_BODY)
    async def estimate(
        request: Request,
        key: Submitter,
        cluster: Cluster = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Simulate a job. The body is a job spec; datasets and models on the Hub are not
        downloaded for it, so of those the sizes are assumed."""
        spec = await read_job(request, service.settings.max_body_bytes)

        async def work() -> Response:
            return answered(await _estimate(key.tenant, spec, cluster))

        told = f"{cluster} {spec.model_dump_json()}".encode()
        return await service.once(key.tenant, idempotency_key, asked(request, told), work)

    async def _estimate(tenant: str, spec: JobSpec, cluster: str | None) -> rest.Estimate:
        if service.estimator is None:
            raise NotFoundError("this service makes no estimates")
        with gate.passed(), service.metrics.estimate():
            await service.references.check(spec, tenant)
            async with service.inputs.materialised(spec, tenant, download=False) as local:
                # Shielded, so that the gate counts a simulation until it has really ended.
                working = asyncio.ensure_future(
                    asyncio.to_thread(service.estimator, local, cluster)
                )
                try:
                    found = await asyncio.shield(working)
                finally:
                    await asyncio.wait({working})
        said = [service.inputs.shown(each) for each in found.assumptions]
        return found.model_copy(update={"assumptions": said})

    return routes
