"""The commands of whoever operates a service."""

from __future__ import annotations

from typing import Annotated

import typer

from rlhfless.cli.options import Verbose


def register(app: typer.Typer) -> None:
    app.command("serve", rich_help_panel="Operating a service")(serve)


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="What this replica keeps on its disk.")
    ] = "rlhfless-data",
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="RLHFLESS_STORE_URL",
            help="Object store of all replicas (a folder, s3://, gs://). Default: in --data.",
        ),
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(
            min=1, help="Function instances of all jobs together. Default: by the machine's cores."
        ),
    ] = None,
    library: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Models, datasets and rewards that every job may name."),
    ] = None,
    allow_url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Jobs may name URLs that begin so, though they lead into the own network; may be "
            "repeated.",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    verbose: Verbose = False,
) -> None:
    """Serve the REST API and run the jobs that it accepts.

    Without a setting everything is in one folder, Redis too. With REDIS_URL and --store several
    replicas serve the same jobs."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.serve import Wishes, serve_here

        serve_here(
            Wishes(
                host=host,
                port=port,
                data=data,
                store=store,
                instances=instances,
                library=library,
                allow_urls=allow_url or (),
                log_level=log_level,
            )
        )
