"""What commands have in common that ask the service."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import TypeVar

import typer
from rich.console import Console
from rich.table import Table

from rlhfless import rest
from rlhfless.client import Client

T = TypeVar("T", bound=rest.Document)

WIDE = 240
RETRIES = 3
"""A person waits: a second or two, then is told that nobody answers."""


def connect() -> Client:
    return Client(retries=RETRIES)


def working(what: str) -> AbstractContextManager[object]:
    """Shows that something is being done, on a terminal."""
    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def console() -> Console:
    """For tables. Where no terminal says how wide it is, nothing is cut off."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDE)


def print_json(document: rest.Document) -> None:
    typer.echo(document.model_dump_json())


def print_list(
    entries: Iterable[T],
    as_json: bool,
    row: Callable[[T], Iterable[str]],
    columns: Iterable[str],
    *,
    limit: int | None = None,
    empty: str,
) -> None:
    """One document a line, or a table; columns whose heading ends in a colon are left-justified.
    ``empty``: what a person is told instead of a table without rows."""
    shown = islice(entries, limit)
    if as_json:
        for entry in shown:
            print_json(entry)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        left = name.endswith(":")
        table.add_column(name.rstrip(":"), justify="left" if left else "right", no_wrap=left)
    for entry in shown:
        table.add_row(*row(entry))
    if not table.row_count:
        typer.echo(empty, err=True)
        return
    console().print(table)
