"""What a job can start from: the operator's library, the tenant's uploads and checkpoints."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from controller.service.library import PREFIX
from controller.service.paging import part_after
from controller.service.records import JobRecord
from controller.service.routes.common import After, Limit, Reader
from controller.service.service import Service
from rlhfless import rest
from rlhfless.errors import NotFoundError

MAX_JOBS = 50
"""Newest jobs whose checkpoints are listed."""


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get("")
    async def models(key: Reader, after: After = None, limit: Limit = 20) -> rest.Page[rest.Model]:
        """First the library's by name, then the tenant's uploads and the last checkpoints of its
        newest jobs, the newest first. Earlier checkpoints, and models on the Hub, can be named,
        too."""
        tenant = key.tenant
        found = [*await _of_library(), *await _of_files(tenant), *await _of_jobs(tenant)]
        page, more = part_after(found, after, limit, "model")
        return rest.Page(data=list(page), has_more=more)

    async def _of_library() -> list[rest.Model]:
        listed = await asyncio.to_thread(service.library.models)
        return [
            rest.Model(
                id=PREFIX + model.name,
                path=PREFIX + model.name,
                source="library",
                created_at=model.added_at,
            )
            for model in listed
        ]

    async def _of_files(tenant: str) -> list[rest.Model]:
        return [
            rest.Model(
                id=file.id,
                path=file.id,
                source="file",
                description=file.filename,
                created_at=file.created_at,
            )
            for file in await service.files.of_purpose(tenant, "model")
        ]

    async def _of_jobs(tenant: str) -> list[rest.Model]:
        jobs = (await service.registry.listed(tenant, limit=MAX_JOBS)).data
        found = await asyncio.gather(*(_last_checkpoint(job) for job in jobs))
        return [model for model in found if model is not None]

    async def _last_checkpoint(job: JobRecord) -> rest.Model | None:
        try:
            last = await service.checkpoints.latest(job.id)
        except NotFoundError:  # none yet
            return None
        reference = f"checkpoint:{job.id}/{last.step}"
        return rest.Model(
            id=reference,
            path=reference,
            source="checkpoint",
            description=f"{job.spec.get('name', '')}, step {last.step}",
            created_at=last.created_at,
        )

    return routes
