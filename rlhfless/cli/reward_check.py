"""``rlhfless reward-check``: the rewards on a few rows, before anything is trained."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlhfless.cli.loop import run_interruptible
from rlhfless.spec import JobSpec, reward_name


def show_reward_check(spec: JobSpec, num_rows: int, completion: str | None) -> None:
    """Run the check and print a table, one row a line."""
    from controller.reward_check import check_rewards

    console = Console()
    source = "the model's own responses" if completion is None else "the given response"
    with console.status(f"scoring {source} ..."):
        check = run_interruptible(check_rewards(spec, num_rows, completion))
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = [reward_name(reward) for reward in spec.rewards]
    for name in ("prompt", "response", *names, "total"):
        table.add_column(escape(name), overflow="fold")
    for row in check.rows:
        prompt = row.prompt if isinstance(row.prompt, str) else row.prompt[-1].get("content", "")
        parts = ("n/a" if part is None else f"{part:.3f}" for part in row.parts)
        table.add_row(escape(str(prompt)), escape(row.completion), *parts, f"{row.total:.3f}")
    console.print(table)
    console.print(
        f"{len(names)} reward(s) scored {len(check.rows)} row(s) in {check.seconds:.2f} s "
        "(imports included)",
        highlight=False,
    )
