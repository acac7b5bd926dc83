"""``rlhfless serve``: a replica of the service in this process."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

import rlhfless
from rlhfless.cli.loop import run_interruptible
from rlhfless.errors import UserError

if TYPE_CHECKING:
    from controller.service.replica import Serving

LEAST_INSTANCES = 8


@dataclass(frozen=True)
class Wishes:
    """As given on the command line; None: the default."""

    host: str
    port: int
    data: str
    store: str | None
    instances: int | None
    patience: float
    library: str | None
    keep_days: float | None
    allow_urls: Sequence[str]
    platform_file: str | None
    log_level: str


def serve_here(wishes: Wishes) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    from controller.service.edge import write_access_log
    from controller.service.replica import serve
    from controller.service.settings import Settings
    from simulator.service_estimate import estimate_apart

    said = logging.StreamHandler()
    level = _level(wishes.log_level)
    said.setLevel(level)
    logging.basicConfig(handlers=[said], format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("controller").setLevel(logging.INFO)  # for the logs of jobs
    logging.getLogger("httpx").setLevel(logging.WARNING)  # its lines have URLs of users in them
    write_access_log(level)
    data = os.path.abspath(wishes.data)
    settings = Settings(
        folder=data,
        store=wishes.store or os.path.join(data, "store"),
        instances=wishes.instances or max(LEAST_INSTANCES, 4 * (os.cpu_count() or 1)),
        patience_instance_s=wishes.patience,
        library=_library(wishes.library),
        keep_days=_days(wishes.keep_days),
        allowed_urls=tuple(wishes.allow_urls),
        platform_file=wishes.platform_file,
    )
    redis_url = os.environ.get("REDIS_URL")

    def ready(serving: Serving) -> None:
        say = typer.echo
        say(f"rlhfless {rlhfless.__version__} serves {serving.url}")
        say(f"  page       {serving.url}/")
        say(f"  API        {serving.url}/docs")
        if serving.admin_key is not None:
            say(f"  admin key  {serving.admin_key}  (kept in {settings.file('admin-key')})")
        else:
            say("  keys       rlhfless keys create --tenant NAME --name WHO --scope submit")
        say(f"  data       {settings.folder}, objects in {settings.store}")
        say(f"  instances  {settings.instances} for all jobs together")
        say("Ctrl-C stops it; jobs go on when it is started again.")

    try:
        run_interruptible(
            serve(settings, wishes.host, wishes.port, redis_url, ready, estimate_apart)
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("stopped; jobs go on when it is started again")


def _level(name: str) -> int:
    levels = logging.getLevelNamesMapping()
    if name.upper() not in levels:
        known = "debug, info, warning, error"
        raise UserError(f"there is no log level {name!r}", hint=f"one of {known}")
    return levels[name.upper()]


def _days(given: float | None) -> float | None:
    if given is not None and not 0 < given < math.inf:
        raise UserError(f"jobs cannot be kept for {given:g} days", param="--keep-days")
    return given


def _library(given: str | None) -> str | None:
    """The folder given, which must be there, else the examples of a checkout."""
    if given is not None:
        if not os.path.isdir(given):
            raise UserError(f"there is no folder {given}", param="--library")
        return os.path.abspath(given)
    examples = os.path.join(os.path.dirname(rlhfless.__file__), os.pardir, "examples")
    return os.path.abspath(examples) if os.path.isdir(examples) else None
