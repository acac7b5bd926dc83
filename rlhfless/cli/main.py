"""``rlhfless``: the command line.

Exit codes: 0 done; 1 unexpected; 2 the job or the command is wrong; 3 no capacity (disk, memory,
instances); 4 something went away and did not come back; 5 retries used up or a defect; 6 the job is
paused; 7 the job was cancelled; 130 interrupted.

Each command imports what it needs when it runs, so ``--help`` stays quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

import rlhfless
from rlhfless.cli import operator_commands, service_commands
from rlhfless.cli.options import AsJson, JobFile, Overrides, Verbose

app = typer.Typer(
    name="rlhfless",
    help="RLHF as stateless functions: run a job here or at a service, simulate it, try its "
    "rewards, look at its spec.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The cluster: a file, or a known name (h100-8, l40s-16, h100-160, mixed-spot, "
        "this-machine). Default: this-machine for a job on CPUs, else h100-8.",
    ),
]
WorkloadOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Prompts and response lengths; assumed where unknown."),
]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"rlhfless {rlhfless.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """RLHF as stateless functions."""


@app.command()
def run(
    job: JobFile,
    overrides: Overrides = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder of the run. Default: runs/<name>."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved job and stop.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Serve Prometheus metrics on 127.0.0.1:PORT."),
    ] = None,
    platform: Annotated[
        str,
        typer.Option(
            metavar="local|ray", help="Where functions run: processes of this machine, or Ray."
        ),
    ] = "local",
    ray_address: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Ray's dashboard, http://HEAD:8265. Default: a Ray started for the run.",
        ),
    ] = "",
    ray_serve_url: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Of Ray Serve's proxy. Default: port 8000 of the dashboard's host."
        ),
    ] = "",
    verbose: Verbose = False,
) -> None:
    """Run a job and show its progress."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.spec_file import dump_spec, load_spec

        spec = load_spec(job, overrides or ())
        if dry_run:
            typer.echo(dump_spec(spec), nl=False)
            return
        from rlhfless.cli.run import run_job

        raise typer.Exit(
            run_job(
                spec,
                job_file=job,
                overrides=overrides or (),
                out=out,
                resume=resume,
                metrics_port=metrics_port,
                platform=platform,
                ray_address=ray_address,
                ray_serve_url=ray_serve_url,
            )
        )


@app.command()
def simulate(
    job: JobFile,
    cluster: ClusterOption = None,
    workload: WorkloadOption = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Strategies side by side, e.g. static,disaggregated,rlhfless,rlhfless+spot; "
            "the others are compared with the first.",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=FROM:TO:STEP",
            help="Try values of a field of the job (or of cluster.<field>), e.g. "
            "rollout.max_instances=4:64:4; may be repeated for a grid.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="USD", help="Answer what can be done for the money."),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Lengths and call times from the folder of a run."),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Measured call times, in place of the roofline's."),
    ] = None,
    steps: Annotated[
        str,
        typer.Option(metavar="N|all", help="Steps to simulate, spread over the job; auto; all."),
    ] = "auto",
    seed: Annotated[int | None, typer.Option(min=0, help="In place of the job's seed.")] = None,
    overrides: Overrides = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Where to write. Default: simulations/<name>."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Find out what a job would take on a cluster, without running it."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.simulate import Wishes, simulate_job

        simulate_job(
            Wishes(
                job=job,
                overrides=overrides or (),
                cluster=cluster,
                workload=workload,
                replay=replay,
                calibrate=calibrate,
                compare=compare,
                sweep=sweep or (),
                budget=budget,
                seed=seed,
                steps=steps,
                out=out,
                as_json=as_json,
            )
        )


@app.command()
def estimate(
    job: JobFile,
    cluster: ClusterOption = None,
    workload: WorkloadOption = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """The quick answer: time and cost of a job, from a few simulated steps."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.simulate import estimate_job

        estimate_job(job, overrides or (), cluster, workload, as_json)


@app.command("reward-check")
def reward_check(
    job: JobFile,
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the dataset to try.")] = 4,
    completion: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Score this response instead of the model's own."),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Try the rewards on a few rows of the dataset before anything is trained."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.reward_check import show_reward_check
        from rlhfless.spec_file import load_spec

        show_reward_check(load_spec(job, overrides or ()), rows, completion)


@app.command()
def explain(
    run: Annotated[str, typer.Argument(help="The folder of a run.", show_default=False)],
    step: Annotated[
        int | None, typer.Option(min=1, help="The step, counted from 1. Default: the newest.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Show why a step had the actors it had, and what the alternatives were."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.explain import show_plan

        show_plan(run, step)


@app.command()
def profile(
    job: JobFile,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where the measurements go.")
    ] = "measurements.json",
    overrides: Overrides = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often everything is measured; instances start anew.")
    ] = 3,
    instances: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rollout instances at work at once. Default: as many as the job may have and the "
            "machine has cores; one on an accelerator.",
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Measure what a job's functions take on this machine, for the simulator."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.profile import write_profile
        from rlhfless.spec_file import load_spec

        spec = load_spec(job, overrides or ())
        write_profile(spec, out=out, rounds=rounds, instances=instances)


service_commands.register(app)


@app.command("spec-schema")
def spec_schema() -> None:
    """Print the JSON schema of a job file (for editors)."""
    import json

    from rlhfless.spec import JobSpec

    typer.echo(json.dumps(JobSpec.model_json_schema(), indent=2))


operator_commands.register(app)


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="rlhfless")


if __name__ == "__main__":
    main()
