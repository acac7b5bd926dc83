"""A tenant's own API keys, for its administrators."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from controller.service.http import read_model
from controller.service.paging import part_after
from controller.service.routes.common import (
    Admin,
    After,
    IdempotencyKey,
    Limit,
    answered,
    asked,
)
from controller.service.service import Service
from controller.service.tenant_documents import key_document
from rlhfless import rest
from rlhfless.errors import ConflictError

MAX_KEYS = 1000
"""Of a tenant, revoked ones included: they stay, so that the audit log can be read."""


class NewKey(BaseModel):
    """``name``: for people, e.g. whose it is or where it is kept."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    name: str
    scope: rest.Scope


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/keys", tags=["keys"])
    keys = service.keys

    @routes.post("", status_code=201, response_model=rest.Key, openapi_extra=_BODY)
    async def create(
        request: Request, key: Admin, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Make a key of the tenant's. Its text is in this answer and nowhere else."""
        wanted = await read_model(request, service.settings.max_body_bytes, NewKey, "the key")

        async def make() -> Response:
            if len(await keys.listed(key.tenant)) >= MAX_KEYS:
                raise ConflictError(f"a tenant may have {MAX_KEYS} keys, revoked ones included")
            made, text = await keys.create(key.tenant, wanted.name, wanted.scope)
            document = key_document(made, text)
            return answered(document, 201, f"/v1/keys/{made.id}", {"Cache-Control": "no-store"})

        what = asked(request, wanted.model_dump_json().encode())
        return await service.once(key.tenant, idempotency_key, what, make, secret=True)

    @routes.get("")
    async def listed(key: Admin, after: After = None, limit: Limit = 20) -> rest.Page[rest.Key]:
        """The tenant's keys without their secrets, revoked ones too, newest first."""
        newest_first = (await keys.listed(key.tenant))[::-1]
        page, more = part_after(newest_first, after, limit, "key")
        return rest.Page(data=[key_document(one) for one in page], has_more=more)

    @routes.delete("/{key_id}")
    async def revoke(key_id: str, key: Admin) -> rest.Key:
        """End a key: from now on it is refused, and what streams by it ends within seconds."""
        return key_document(await keys.revoke(key.tenant, key_id, keep_an_admin=True))

    return routes


_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": NewKey.model_json_schema()}},
    }
}
