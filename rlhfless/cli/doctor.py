"""``rlhfless doctor --cluster``: what a cluster lacks, before a job finds out."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from rlhfless.errors import UserError

if TYPE_CHECKING:
    from controller.platforms.knative_finding import Finding

_MARKS = {"ok": "ok", "warning": "warn", "failed": "FAIL", "unknown": "?"}
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "unknown": "yellow"}
NOT_READY = 2
"""Exit code: something must be changed."""


@dataclass(frozen=True)
class Where:
    """``file``: the settings of functions; None: those of the release in the namespace."""

    namespace: str
    release: str
    context: str | None
    file: str | None


def examine_cluster(where: Where, as_json: bool) -> None:
    findings = asyncio.run(_findings(where))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = typer.style(f"{_MARKS[finding.verdict]:4}", fg=_COLOURS[finding.verdict])
            typer.echo(f"{mark}  {finding.what}")
            if finding.advice:
                typer.echo(f"      {finding.advice}")
    if any(finding.verdict == "failed" for finding in findings):
        raise typer.Exit(NOT_READY)


async def _findings(where: Where) -> list[Finding]:
    try:
        from controller.platforms.kube import Kube
    except ModuleNotFoundError as error:
        raise UserError(
            "the Kubernetes client is not installed", hint="pip install 'rlhfless[k8s]'"
        ) from error
    from controller.platforms.knative_checks import judge
    from controller.platforms.knative_doctor import examine, installed_settings
    from controller.platforms.knative_settings import load_settings

    async with await Kube.connect(where.context) as kube:
        if where.file is not None:
            settings = load_settings(where.file)
        else:
            settings = await installed_settings(kube, where.namespace, where.release)
        return judge(settings, await examine(kube, settings))
