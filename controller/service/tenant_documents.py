"""From keys, limits and the audit log to what the service answers (``rlhfless.rest``)."""

from __future__ import annotations

from controller.service.audit import AuditEntry
from controller.service.keys import ApiKey
from controller.service.tenants import Limits
from rlhfless import rest


def key_document(key: ApiKey, text: str | None = None) -> rest.Key:
    return rest.Key(
        id=key.id,
        tenant=key.tenant,
        name=key.name,
        scope=key.scope,
        created_at=key.created_at,
        revoked_at=key.revoked_at,
        key=text,
    )


def quota_document(limits: Limits) -> rest.Quota:
    return rest.Quota(
        weight=limits.weight,
        max_jobs=limits.max_jobs,
        max_instances=limits.max_instances,
        max_function_seconds=limits.max_function_seconds,
        max_usd=limits.max_usd,
    )


def audit_document(entry: AuditEntry) -> rest.AuditEntry:
    """Of an entry of a tenant's."""
    assert entry.tenant is not None
    return rest.AuditEntry(
        id=entry.id,
        created_at=entry.created_at,
        tenant=entry.tenant,
        key=entry.key,
        action=entry.action,
        target=entry.target,
        status=entry.status,
        request=entry.request,
    )
