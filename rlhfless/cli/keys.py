"""``rlhfless keys``: API keys of any tenant, for whoever operates the service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Table

from rlhfless.cli.operating import operating
from rlhfless.cli.service import console
from rlhfless.rest import Key, Scope

if TYPE_CHECKING:
    from controller.service.operator import Operator


def create_key(data: str, tenant: str, name: str, scope: Scope, as_json: bool) -> None:
    from controller.service.tenant_documents import key_document

    async def create(operator: Operator) -> Key:
        return key_document(*await operator.keys.create(tenant, name, scope))

    key = operating(data, create)
    if as_json:
        typer.echo(key.model_dump_json())
        return
    typer.echo(key.key)
    typer.secho(f"key {key.id} of tenant {tenant}, scope {scope}; it is shown this once", err=True)


def list_keys(data: str, tenant: str | None, as_json: bool) -> None:
    from controller.service.tenant_documents import key_document

    async def listed(operator: Operator) -> list[Key]:
        return [key_document(key) for key in await operator.keys.listed(tenant)]

    keys = operating(data, listed)
    if as_json:
        for key in keys:
            typer.echo(key.model_dump_json())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "tenant", "name", "scope", "created", "revoked"):
        table.add_column(column)
    for key in keys:
        times = (_day(key.created_at), _day(key.revoked_at))
        table.add_row(key.id, key.tenant, escape(key.name), key.scope, *times)
    console().print(table)


def revoke_key(data: str, id_: str, as_json: bool) -> None:
    from controller.service.tenant_documents import key_document

    async def revoke(operator: Operator) -> Key:
        keys = operator.keys
        return key_document(await keys.revoke((await keys.find(id_)).tenant, id_))

    key = operating(data, revoke)
    if as_json:
        typer.echo(key.model_dump_json())
    else:
        typer.echo(f"key {key.id} of tenant {key.tenant} ({key.name}) is revoked")


def _day(at: float | None) -> str:
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
