"""What a job leaves, step by step: metrics, plans, samples, usage; and its timeline."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response

from controller.service.routes.common import After, Limit, Reader
from controller.service.sample_reader import Sort
from controller.service.service import Service
from rlhfless import rest

Step = Annotated[int | None, Query(ge=1, le=10**9, description="Counted from 1; the newest.")]
Sorted = Annotated[Sort, Query(description="-reward has the best first.")]
Tokens = Annotated[bool, Query(description="With each token's text and log-prob.")]
ManySpans = Annotated[int, Query(ge=1, le=1000, description="Entries on the page.")]


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/jobs/{job}", tags=["outputs"])
    registry, outputs = service.registry, service.outputs

    @routes.get("/metrics")
    async def metrics(
        job: str, key: Reader, after: After = None, limit: Limit = 20
    ) -> rest.Page[rest.StepMetrics]:
        """Of each committed step, in order."""
        await registry.get(key.tenant, job)
        return await outputs.metrics(job, after, limit)

    @routes.get("/plans")
    async def plans(
        job: str, key: Reader, after: After = None, limit: Limit = 20
    ) -> rest.Page[rest.StepPlan]:
        """Of each committed step, in order: how its rollout was planned, and how it went."""
        await registry.get(key.tenant, job)
        return await outputs.plans(job, after, limit)

    @routes.get("/usage")
    async def usage(job: str, key: Reader, after: After = None, limit: Limit = 20) -> rest.Usage:
        """The job's ledger: in all, by function, and a page of its steps."""
        await registry.get(key.tenant, job)
        return await outputs.usage(job, after, limit)

    @routes.get("/timeline")
    async def timeline(
        job: str, key: Reader, after: After = None, limit: ManySpans = 100
    ) -> rest.Page[rest.Span]:
        """What the job's instances did when, in the order in which it ended; what goes on is last,
        and comes again with its end."""
        await registry.get(key.tenant, job)
        return await service.timelines.page(job, after, limit)

    @routes.get("/rollouts", response_model=rest.Page[rest.Rollout])
    async def rollouts(
        job: str,
        key: Reader,
        step: Step = None,
        sort: Sorted = "id",
        tokens: Tokens = False,
        after: After = None,
        limit: Limit = 20,
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> rest.Page[rest.Rollout] | Response:
        """Samples of a committed step, with their rewards. They do not change: ask again with
        ``If-None-Match`` and nothing is sent twice."""
        await registry.get(key.tenant, job)
        chosen = await outputs.committed_step(job, step)
        if chosen is None:
            return rest.Page(data=[], has_more=False)
        headers = unchanging(job, chosen, sort, tokens, after, limit)
        if same(if_none_match, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        page = await service.samples.page(job, chosen, sort, after, limit, tokens=tokens)
        return Response(page, headers=headers, media_type="application/json")

    return routes


def unchanging(*what: object) -> dict[str, str]:
    """Headers of an answer that says the same for ever; kept by whoever asked, and shown again only
    to a key that may still see it."""
    digest = hashlib.sha256(repr(what).encode()).hexdigest()[:32]
    return {"ETag": f'"{digest}"', "Cache-Control": "private, no-cache", "Vary": "Authorization"}


def same(if_none_match: str | None, etag: str) -> bool:
    """Whether whoever asks has the answer already (RFC 9110, section 13.1.2)."""
    if if_none_match is None:
        return False
    known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in known or known == ["*"]
