"""Errors as a person meets them: what is wrong, what to do, an exit code; no stack trace unless
asked for."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from rlhfless.errors import RlhflessError, first_error

INTERRUPTED = 130


def print_error(error: RlhflessError) -> None:
    first, *more = error.detail.splitlines() or ["unknown error"]
    typer.secho(f"error: {first}", fg=typer.colors.RED, err=True)
    for line in more:
        typer.echo(f"       {line}", err=True)
    if error.param and error.param not in error.detail:
        typer.echo(f"at:    {error.param}", err=True)
    if error.hint:
        typer.echo(f"hint:  {error.hint}", err=True)


@contextmanager
def reporting(verbose: bool) -> Iterator[None]:
    """Turn what is raised inside into a message and an exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:  # `| head` has enough: typer ends us quietly
        raise
    except BaseException as raised:  # the boundary of the program
        error = first_error(raised)
        if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if verbose:
            traceback.print_exception(raised, file=sys.stderr)
        if isinstance(error, RlhflessError):
            if verbose and error.trace:
                typer.echo(error.trace, err=True)
            print_error(error)
            raise typer.Exit(error.exit_code) from None
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        typer.secho(f"error: {type(error).__name__}: {error}", fg=typer.colors.RED, err=True)
        if not verbose:
            typer.echo("hint:  this is a defect; --verbose shows where it happened", err=True)
        raise typer.Exit(1) from None
