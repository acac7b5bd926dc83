"""The commands of whoever operates a service."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from rlhfless.cli.options import AsJson, Verbose


class KeyScope(str, Enum):  # noqa: UP042 - typer shows the values of a str
    """Each includes those before it."""

    read = "read"
    submit = "submit"
    admin = "admin"


PANEL = "Operating a service"
Data = Annotated[
    str,
    typer.Option("--data", metavar="DIR", help="The service's folder, unless REDIS_URL is set."),
]


def register(app: typer.Typer) -> None:
    app.command("serve", rich_help_panel=PANEL)(serve)
    app.command("doctor", rich_help_panel=PANEL)(doctor)
    keys = typer.Typer(no_args_is_help=True, help="API keys of any tenant.")
    keys.command("create")(keys_create)
    keys.command("list")(keys_list)
    keys.command("revoke")(keys_revoke)
    app.add_typer(keys, name="keys", rich_help_panel=PANEL)
    tenants = typer.Typer(no_args_is_help=True, help="Tenants, their limits and what they use.")
    tenants.command("set")(tenants_set)
    tenants.command("list")(tenants_list)
    app.add_typer(tenants, name="tenants", rich_help_panel=PANEL)


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
    patience: Annotated[
        float,
        typer.Option(
            min=0, help="Instance-seconds a job runs on though it is the turn of another tenant's."
        ),
    ] = 600.0,
    library: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Models, datasets and rewards that every job may name."),
    ] = None,
    keep_days: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Remove jobs, with all they left, that ended longer ago. Default: keep them.",
        ),
    ] = None,
    allow_url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Jobs may name URLs that begin so, though they lead into the own network; may be "
            "repeated.",
        ),
    ] = None,
    platform_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="RLHFLESS_PLATFORM_FILE",
            help="The cluster that runs functions, as the Helm chart renders it. Default: they run "
            "on this machine.",
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
                patience=patience,
                library=library,
                keep_days=keep_days,
                allow_urls=allow_url or (),
                platform_file=platform_file,
                log_level=log_level,
            )
        )


def doctor(
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Look at the Kubernetes cluster that runs functions.")
    ] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where the chart is installed.")
    ] = "default",
    release: Annotated[str, typer.Option(help="The chart's release.")] = "rlhfless",
    context: Annotated[
        str | None, typer.Option(help="Of the kubeconfig. Default: the current one.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="RLHFLESS_PLATFORM_FILE",
            help="How functions look, as the chart renders it. Default: what the release has.",
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say what a cluster lacks to run functions, and how to change it. Exit code 2: something must
    be changed."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.doctor import Where, examine_cluster
        from rlhfless.errors import UserError

        if not cluster:
            raise UserError("say what to look at", hint="rlhfless doctor --cluster")
        examine_cluster(Where(namespace, release, context, file), as_json)


def keys_create(
    tenant: Annotated[str, typer.Option(help="Whose key; a new name makes a new tenant.")],
    name: Annotated[str, typer.Option(help="For people: who uses it, or where it is kept.")],
    scope: Annotated[
        KeyScope,
        typer.Option(
            help="read: look at jobs; submit: also submit and steer them; admin: also manage the "
            "tenant's keys."
        ),
    ] = KeyScope.submit,
    data: Data = "rlhfless-data",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Make a key and print it. It is shown this once."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.keys import create_key

        create_key(data, tenant, name, scope.value, as_json)


def keys_list(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    data: Data = "rlhfless-data",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List keys without their secrets, revoked ones too, oldest first."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.keys import list_keys

        list_keys(data, tenant, as_json)


def keys_revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id.", show_default=False)],
    data: Data = "rlhfless-data",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """End a key: from now on it is refused."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.keys import revoke_key

        revoke_key(data, key, as_json)


def tenants_set(
    tenant: Annotated[str, typer.Argument(help="The tenant's name.", show_default=False)],
    weight: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Its share of the instances; others: 1.")
    ] = None,
    max_jobs: Annotated[
        str | None, typer.Option(metavar="NUMBER|none", help="Jobs that run at once.")
    ] = None,
    max_instances: Annotated[
        str | None, typer.Option(metavar="NUMBER|none", help="Function instances at once.")
    ] = None,
    max_function_seconds: Annotated[
        str | None, typer.Option(metavar="NUMBER|none", help="Instance-seconds a month (UTC).")
    ] = None,
    max_usd: Annotated[
        str | None, typer.Option(metavar="NUMBER|none", help="Dollars a month (UTC).")
    ] = None,
    data: Data = "rlhfless-data",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Change what a tenant may have; what is not given stays as it is."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.tenants import set_tenant

        given = {
            "weight": weight,
            "max_jobs": max_jobs,
            "max_instances": max_instances,
            "max_function_seconds": max_function_seconds,
            "max_usd": max_usd,
        }
        set_tenant(data, tenant, given, as_json)


def tenants_list(
    data: Data = "rlhfless-data", as_json: AsJson = False, verbose: Verbose = False
) -> None:
    """List tenants: their limits, what they used this month, their valid keys."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.tenants import list_tenants

        list_tenants(data, as_json)
