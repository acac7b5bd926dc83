"""JSON, CSV and charts."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from rlhfless.errors import UserError
from simulator.report import charts
from simulator.report.contents import Report
from simulator.report.frontier_chart import draw_frontier
from simulator.report.json_file import FORMAT, dump, dump_spans
from simulator.result import Use
from tests.support.simulations import (
    budget_answer,
    max_instances,
    simulation,
    spans,
    step_found,
)


def read(report: Report) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dump(report), parse_constant=pytest.fail)
    return found


def test_json_of_one_simulation() -> None:
    found = read(Report((simulation(),)))
    assert found["format"] == FORMAT
    assert (found["job"], found["cluster"]) == ("math", "h100-8")
    one = found["simulations"][0]
    assert one["steps"] == 100
    assert one["steps_simulated"] == 10
    assert one["seconds"] == 8000.0
    assert one["step_s"] == {"mean": 80.0, "p50": 80.0, "p90": 84.0, "p99": 84.0, "max": 84.0}
    assert one["accelerator_seconds"] == {
        "held": 57200.0, "busy": 36800.0, "idle": 16000.0, "cold": 4400.0,
    }  # fmt: skip
    assert one["usage"]["training"]["accelerators_per_instance"] == 8
    assert one["usage"]["rollout"]["usd"]["spot"] == 10.2
    assert one["simulated"][0]["plan"]["actors"] == 4
    assert one["spec"]["name"] == "math"
    assert not {"sweep", "budget"} & set(found)


def test_json_says_null_where_nothing_is_known() -> None:
    usage = {"rollout": Use(1, 10.0, 0.0, 0.0, None, None, None)}
    step = step_found(1, metrics={"reward/mean": math.nan})
    one = read(Report((simulation(usage=usage, simulated=(step,)),)))["simulations"][0]
    assert one["usd"] == {"as_run": None, "on_demand": None, "spot": None}
    assert one["simulated"][0]["metrics"] == {"reward/mean": None}
    assert one["against_first"]["usd_saved"] is None


def test_json_compares_with_the_first() -> None:
    found = read(Report((simulation("static", 1.4), simulation())))["simulations"]
    assert found[0]["against_first"]["speedup"] == 1.0
    assert found[1]["against_first"]["speedup"] == 1.4
    assert found[1]["against_first"]["accelerator_seconds_saved"] == pytest.approx(0.1006, abs=1e-4)


def test_json_of_a_sweep_and_of_a_budget() -> None:
    found = max_instances([4, 8, 16], worse=8)
    report = Report((simulation(),), None, found, budget_answer(fits=True))
    document = read(report)
    sweep, budget = document["sweep"], document["budget"]
    assert sweep["axes"] == [{"field": "rollout.max_instances", "values": [4, 8, 16]}]
    assert [point["values"]["rollout.max_instances"] for point in sweep["points"]] == [4, 8, 16]
    assert sweep["frontier"] == list(found.frontier)
    assert sweep["impossible"][0]["reason"] == "too many"
    assert budget["fits"] is True
    assert budget["best"]["steps"] == 78
    assert [way["strategy"] for way in budget["ways"]] == ["rlhfless", "static"]


def test_the_same_simulations_give_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("a.png", "b.png"):
        report = Report((simulation("static", 1.4), simulation()), None, max_instances([4, 8, 16]))
        charts.draw_gantt(report, str(tmp_path / name))
        chart = (tmp_path / name).read_bytes()
        written.append((dump(report), dump_spans(report), chart))
    assert written[0] == written[1]


def test_spans_as_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(dump_spans(Report((simulation("a,b"),))))))
    assert len(rows) == len(spans())
    assert rows[0] == {
        "strategy": "a,b",
        "instance": "rollout-1",
        "function": "rollout",
        "pool": "reserved",
        "spot": "False",
        "accelerators": "1",
        "phase": "cold",
        "start_s": "0.0",
        "end_s": "4.0",
    }


@pytest.mark.parametrize("actors", [4, 300])
def test_charts_are_written(tmp_path: Path, actors: int) -> None:
    unpriced = {"rollout": Use(1, 10.0, 0.0, 0.0, None, None, None)}
    runs = (
        simulation("$static_{", 1.4, spans=spans(1.4, actors)),
        simulation("without a span", spans=()),
        simulation(usage=unpriced),
    )
    report = Report(runs)
    charts.draw_gantt(report, str(tmp_path / "gantt.png"))
    charts.draw_cost(report, str(tmp_path / "cost.png"))
    for name in ("gantt", "cost"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_gantt_chart_of_nothing(tmp_path: Path) -> None:
    charts.draw_gantt(Report((simulation(spans=()),)), str(tmp_path / "gantt.png"))
    assert (tmp_path / "gantt.png").stat().st_size > 0


@pytest.mark.parametrize("values", [[4], [4, 8, 16], range(4, 400, 4)])
def test_a_frontier_is_drawn(tmp_path: Path, values: list[int]) -> None:
    found = max_instances(values)
    draw_frontier(Report((simulation(),), None, found), found, str(tmp_path / "frontier.png"))
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_charts_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "have_matplotlib", lambda: False)
    with pytest.raises(UserError, match="need matplotlib") as raised:
        charts.draw_cost(Report((simulation(),)), "cost.png")
    assert "pip install" in (raised.value.hint or "")
