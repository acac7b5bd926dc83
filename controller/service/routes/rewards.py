"""A job's rewards tried on a few rows, before it is submitted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from controller.reward_check import check_rewards
from controller.service.gate import Gate
from controller.service.http import read_model
from controller.service.routes.common import IdempotencyKey, Submitter, answered, asked
from controller.service.service import Service
from rlhfless import rest
from rlhfless.errors import UserError
from rlhfless.spec import JobSpec, reward_name

MAX_CHECKS = 2
"""At once on this replica; each starts the processes of a small job."""
CHECK_S = 120.0
TRACE_LINES = 12


class RewardTry(BaseModel):
    """``completion``: scored as the response to each row; null: the job's model answers."""

    model_config = ConfigDict(extra="forbid")
    job: JobSpec
    rows: int = Field(default=4, ge=1, le=32)
    completion: str | None = Field(default=None, max_length=100_000)


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/rewards", tags=["rewards"])
    gate = Gate("reward checks", MAX_CHECKS)

    @routes.post("/check", response_model=rest.RewardCheck, openapi_extra=_BODY)
    async def check(
        request: Request, key: Submitter, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Score some rows of the job's dataset with its rewards."""
        max_bytes = service.settings.max_body_bytes
        wanted = await read_model(request, max_bytes, RewardTry, "the check")

        async def work() -> Response:
            return answered(await _check(key.tenant, wanted))

        told = wanted.model_dump_json().encode()
        return await service.once(key.tenant, idempotency_key, asked(request, told), work)

    async def _check(tenant: str, wanted: RewardTry) -> rest.RewardCheck:
        names = [reward_name(reward) for reward in wanted.job.rewards]
        with gate.passed(), _told_of_job(service):
            try:
                async with asyncio.timeout(CHECK_S):
                    await service.references.check(wanted.job, tenant)
                    async with service.inputs.materialised(wanted.job, tenant) as spec:
                        found = await check_rewards(spec, wanted.rows, wanted.completion)
            except TimeoutError:
                raise UserError(
                    f"the check takes longer than {CHECK_S:g} s", hint="try fewer rows"
                ) from None
        rows = [
            rest.RewardedRow(
                prompt=row.prompt,
                completion=row.completion,
                reward=row.total,
                rewards=dict(zip(names, row.parts, strict=True)),
            )
            for row in found.rows
        ]
        return rest.RewardCheck(data=rows, seconds=found.seconds)

    return routes


@contextmanager
def _told_of_job(service: Service) -> Iterator[None]:
    """Refusals name fields of the request, and end with the last lines of the user's own trace."""
    try:
        yield
    except UserError as error:
        shown = service.inputs.shown
        error.param = None if error.param is None else f"job.{error.param}"
        error.hint = None if error.hint is None else shown(error.hint)
        tail = (error.trace or "").strip().splitlines()[-TRACE_LINES:]
        error.detail = shown("\n".join([error.detail, *tail]))
        raise


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["job"],
                    "additionalProperties": False,
                    "properties": {
                        "job": {"$ref": "#/components/schemas/JobSpec"},
                        "rows": {"type": "integer", "minimum": 1, "maximum": 32, "default": 4},
                        "completion": {"type": ["string", "null"], "default": None},
                    },
                }
            }
        },
    }
}
