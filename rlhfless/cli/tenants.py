"""``rlhfless tenants``: what each tenant may have, for whoever operates the service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from rlhfless.cli.operating import operating
from rlhfless.cli.service import console
from rlhfless.errors import UserError

if TYPE_CHECKING:
    from controller.service.operator import Operator
    from controller.service.tenants import Limits, Used

NO_LIMIT = "none"
_WHOLE = ("max_jobs", "max_instances")


@dataclass(frozen=True)
class _Row:
    limits: Limits
    used: Used
    keys: int

    def document(self, tenant: str) -> dict[str, Any]:
        import msgspec

        month = msgspec.to_builtins(self.used)
        quota = msgspec.to_builtins(self.limits)
        return {"tenant": tenant, "quota": quota, "month": month, "valid_keys": self.keys}


def set_tenant(data: str, tenant: str, given: Mapping[str, str | None], as_json: bool) -> None:
    """``given``: limits as they were written, ``none`` for no limit; None: left as it is."""
    changes = {name: _limit(name, text) for name, text in given.items() if text is not None}
    if not changes:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError("nothing is to be changed", hint=f"give one of {options}")

    async def change(operator: Operator) -> dict[str, _Row]:
        await operator.tenants.change(tenant, changes)
        return {tenant: (await _rows(operator))[tenant]}

    _show(operating(data, change), as_json)


def list_tenants(data: str, as_json: bool) -> None:
    _show(operating(data, _rows), as_json)


async def _rows(operator: Operator) -> dict[str, _Row]:
    """Every tenant that has limits of its own or a key."""
    tenants, keys = operator.tenants, await operator.keys.listed()
    names = {key.tenant for key in keys} | (await tenants.listed()).keys()
    return {
        name: _Row(
            await tenants.limits(name),
            await tenants.usage(name),
            sum(key.tenant == name and key.revoked_at is None for key in keys),
        )
        for name in sorted(names)
    }


def _show(rows: Mapping[str, _Row], as_json: bool) -> None:
    if as_json:
        for tenant, row in rows.items():
            typer.echo(json.dumps(row.document(tenant)))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tenant")
    heads = ("weight", "jobs", "instances", "function-seconds", "USD", "used s", "used USD", "keys")
    for head in heads:
        table.add_column(head, justify="right")
    for tenant, row in rows.items():
        limits, used = row.limits, row.used
        bounds = (
            limits.max_jobs,
            limits.max_instances,
            limits.max_function_seconds,
            limits.max_usd,
        )
        table.add_row(
            tenant,
            f"{limits.weight:g}",
            *("" if bound is None else f"{bound:g}" for bound in bounds),
            f"{used.function_seconds:.0f}",
            f"{used.usd:.2f}",
            str(row.keys),
        )
    console().print(table)


def _limit(name: str, text: str) -> float | int | None:
    if text == NO_LIMIT and name != "weight":
        return None
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError as error:
        kind = "a whole number" if name in _WHOLE else "a number"
        raise UserError(
            f"--{name.replace('_', '-')} is {kind}, got {text!r}", hint=f"or {NO_LIMIT}: no limit"
        ) from error
