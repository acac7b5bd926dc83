"""What the terminal shows: rendered at 80 columns, as a person would read it."""

from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from simulator.known_clusters import find_cluster
from simulator.report import budget_table, side_by_side, sweep_table, table
from simulator.report.contents import Report
from simulator.result import Use
from simulator.sweep import Sweep, rank
from tests.support.simulations import budget_answer, max_instances, simulation, step_found


def shown(what: RenderableType, width: int = 80) -> str:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(what)
    text = capture.get()
    assert all(len(line) <= width for line in text.splitlines())
    return text


def row(text: str, name: str) -> list[str]:
    found = [line for line in text.splitlines() if line.startswith(name)]
    assert len(found) == 1, text
    return found[0].removeprefix(name).split()


def one(**changes: object) -> str:
    made = replace(simulation(), **changes)  # type: ignore[arg-type]
    return shown(table.show(Report((made,)), made))


def test_one_simulation() -> None:
    text = one()
    assert "math on h100-8, rlhfless" in text
    assert "100 steps of 256 samples, seed 7; 10 simulated, the rest extrapolated" in text
    assert "Job   2.22 h" in text
    assert "mean 80.0   median 80.0   p90 84.0   p99 84.0   longest 84.0 s" in text
    assert "rollout 70%   scoring 5%   training 20%   other 5%" in text
    assert row(text, "GPU-h")[:3] == ["held", "share", "busy"]
    assert row(text, "rollout ") == ["7.4", "46%", "6.1", "0.8", "0.4", "11%", "$29.40"]
    assert row(text, "training, 8 each") == ["6.7", "42%", "3.6", "2.5", "0.7", "37%", "$26.90"]
    assert row(text, "all ") == ["15.9", "100%", "10.2", "4.4", "1.2", "28%", "$63.50"]
    assert "$63.50 as run; $63.50 all on demand, $22.00 all on spot" in text
    assert "4 to 8 a step; 3.00 samples moved a step; 2.50 preemptions" in text
    assert " - prices of 2026-11" in text


def test_functions_on_hosts_are_not_in_the_sum_of_accelerators() -> None:
    text = one()
    assert row(text, "reward (instance-h)")[:2] == ["2.2", "-"]
    assert text.index("\nall ") < text.index("reward (instance-h)")


def test_time_outside_of_steps_is_told() -> None:
    made = simulation()
    assert "starting, evaluating" not in one()
    text = one(seconds=made.seconds + 1800)
    assert "30.0 min of it starting, evaluating and writing the model" in text
    assert "mean 80.0" in text


def test_unknown_prices_are_unknown() -> None:
    usage = {"rollout": Use(1, 22_000.0, 3_000.0, 1_500.0, None, None, None)}
    text = one(usage=usage)
    assert row(text, "rollout ")[-1] == "unknown"
    assert "unknown: the cluster has no price (pools.<name>.price_usd_per_hour)" in text
    assert "$0" not in text


def test_a_price_that_is_known_for_one_kind_of_capacity_alone() -> None:
    text = one(usage={"rollout": Use(1, 22_000.0, 0.0, 0.0, 10.0, 10.0, None)})
    assert "$10.00 as run; $10.00 all on demand, unknown all on spot" in text


def test_every_step_simulated() -> None:
    text = one(steps=1, simulated=(step_found(1, stands_for=1.0),), assumptions=())
    assert "1 step of 256 samples, seed 7; all simulated" in text
    assert "Assumed" not in text


def test_cores_are_not_called_gpus() -> None:
    made = simulation()
    report = Report((made,), find_cluster("this-machine").cluster())
    assert "core-h" in shown(table.show(report, made))


def test_a_name_with_markup_stays_as_it_is() -> None:
    made = simulation("[bold]static[/bold]", job="[red]x")
    text = shown(table.show(Report((made,)), made))
    assert "[red]x on h100-8, [bold]static[/bold]" in text
    both = Report((made, replace(made, assumptions=("[i]not markup[/i]",))))
    assert "[bold]static[/bold]" in shown(side_by_side.show(both), 120)
    assert "[i]not markup[/i]" in shown(side_by_side.show(both), 120)


def test_side_by_side() -> None:
    runs = (simulation("static", 1.4), simulation("disaggregated", 1.2), simulation("rlhfless"))
    text = shown(side_by_side.show(Report(runs)))
    totals, shares = text.split("speed-up, saved: against static")
    assert row(totals, "static ") == ["3.11", "112", "118", "17.7", "$63.50"]
    assert row(totals, "rlhfless ") == [
        "2.22", "80", "84", "1.40x", "15.9", "10%", "$63.50", "0%",
    ]  # fmt: skip
    assert row(shares, "static ") == ["58%", "35%", "7%", "7.7", "2.2", "7.7", "1,339"]
    assert text.count("prices of 2026-11") == 1


def test_what_takes_more_is_not_called_saved() -> None:
    runs = (simulation("rlhfless"), simulation("static", 1.4))
    totals = shown(side_by_side.show(Report(runs))).split("speed-up, saved")[0]
    assert row(totals, "static ")[3:6] == ["0.71x", "17.7", "-11%"]


def sweep_shown(found: Sweep) -> str:
    return shown(sweep_table.show(Report((found.points[0].simulation,), None, found), found))


def test_a_sweep_marks_its_frontier_and_knee() -> None:
    text = sweep_shown(max_instances(range(4, 65, 4), worse=12))
    knee = [line for line in text.splitlines() if line.endswith("<- knee")]
    assert len(knee) == 1
    assert knee[0].split()[:2] == ["*", "16"]
    assert [line.split()[0] for line in text.splitlines() if "5.2 " in line] == ["12"]
    assert "15 points that nothing beats in both time and dollars" in text
    assert "knee: rollout.max_instances = 16" in text
    assert "1 combination cannot be run" in text
    assert "rollout.max_instances=99: too many" in text


def test_a_long_sweep_keeps_to_a_page() -> None:
    text = sweep_shown(max_instances(range(4, 500, 4)))
    assert "(41 of 124 points)" in text
    assert len(text.splitlines()) < 55
    assert "<- knee" in text


def test_strategies_of_a_sweep_are_told_apart() -> None:
    found = max_instances([4, 8])
    other = [replace(point, strategy="static") for point in found.points]
    text = sweep_shown(rank(found.axes, [*found.points, *other]))
    assert "strategy, rollout.max_instances" in text
    assert "static, 8" in text


@pytest.mark.parametrize("fits", [True, False])
def test_a_budget(fits: bool) -> None:
    answer = budget_answer(fits)
    text = shown(budget_table.show(Report((simulation(),), None, None, answer), answer))
    assert "for $50.00" in text
    assert answer.sentence in " ".join(text.split())
    assert row(text, "rlhfless ")[:2] == ["8", "78"]


def test_what_does_not_go_together_is_noted() -> None:
    made = simulation()
    text = shown(table.show(Report((made,), notes=("16 asked, 8 held",)), made))
    assert "Note\n - 16 asked, 8 held" in text
    assert text.index("Note") < text.index("Assumed")
