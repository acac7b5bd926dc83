"""Whose key this is, and what its tenant may have and has used."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from controller.service.routes.common import Reader
from controller.service.service import Service
from controller.service.tenant_documents import quota_document
from rlhfless import rest

_RUNS = ("running", "pausing")


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/tenant", tags=["tenant"])

    @routes.get("")
    async def tenant(key: Reader) -> rest.Tenant:
        """The tenant of the key that asks: its quota, and what it uses now and this month."""
        limits, used, jobs, queue = await asyncio.gather(
            service.tenants.limits(key.tenant),
            service.tenants.usage(key.tenant),
            service.registry.open_jobs(key.tenant),
            service.shares.read(),
        )
        return rest.Tenant(
            name=key.tenant,
            scope=key.scope,
            quota=quota_document(limits),
            running_jobs=sum(job.state in _RUNS for job in jobs),
            instances=sum(queue.held(job.id) for job in jobs),
            function_seconds=used.function_seconds,
            usd=used.usd,
            unpriced_seconds=used.unpriced_seconds,
        )

    return routes
