"""The tenant's audit log, for its administrators."""

from __future__ import annotations

from fastapi import APIRouter

from controller.service.events import check_cursor
from controller.service.routes.common import Admin, After, Limit
from controller.service.service import Service
from controller.service.tenant_documents import audit_document
from rlhfless import rest


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/audit", tags=["audit"])

    @routes.get("")
    async def audit(
        key: Admin, after: After = None, limit: Limit = 20
    ) -> rest.Page[rest.AuditEntry]:
        """What the tenant's keys changed, and what they were refused, newest first."""
        cursor = None if after is None else check_cursor(after)
        page = await service.audit.read(key.tenant, cursor, limit)
        return rest.Page(
            data=[audit_document(entry) for entry in page.data], has_more=page.has_more
        )

    return routes
