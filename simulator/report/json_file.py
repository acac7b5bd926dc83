"""Simulations as JSON, and their instances' phases as CSV: fields that scripts may rely on
(``docs/simulator.md`` lists them).

The same simulations give the same bytes: numbers have nine significant digits, what is no finite
number is null, as is an unknown price.
"""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from simulator.budget import BudgetAnswer, Way
from simulator.report.contents import Report, by_function, compare, outside_s, split, step_s, whole
from simulator.result import Simulation, StepFound, Use
from simulator.sweep import Sweep

FORMAT = "rlhfless.simulation/1"
SPAN_FIELDS = (
    "instance",
    "function",
    "pool",
    "spot",
    "accelerators",
    "phase",
    "start_s",
    "end_s",
)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def dump(report: Report) -> str:
    """The document as text, ended by a newline."""
    return json.dumps(document(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(report: Report) -> dict[str, Any]:
    """Everything but the spans."""
    first = report.simulations[0]
    found: dict[str, Any] = {
        "format": FORMAT,
        "job": first.job,
        "cluster": first.cluster,
        "notes": list(report.notes),
        "simulations": [_simulation(each, first) for each in report.simulations],
    }
    if report.sweep is not None:
        found["sweep"] = _sweep(report.sweep)
    if report.budget is not None:
        found["budget"] = _budget(report.budget)
    cleaned: dict[str, Any] = _clean(found)
    return cleaned


def dump_spans(report: Report) -> str:
    """The phases of instances over each simulation's window, as CSV with a heading."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("strategy", *SPAN_FIELDS))
    for one in report.simulations:
        for span in one.spans:
            rows.writerow((one.strategy, *(_clean(getattr(span, name)) for name in SPAN_FIELDS)))
    return text.getvalue()


def _simulation(one: Simulation, first: Simulation) -> dict[str, Any]:
    against = compare(one, first)
    return {
        **_totals(one),
        "outside_steps_s": outside_s(one),
        "step_shares": split(one),
        "usage": {function: _use(use) for function, use in by_function(one).items()},
        "against_first": {
            "speedup": against.speedup,
            "accelerator_seconds_saved": against.held_saved,
            "usd_saved": against.usd_saved,
        },
        "window_s": list(one.window_s),
        "simulated": [_step(step) for step in one.simulated],
        "assumptions": list(one.assumptions),
        "spec": one.spec,
    }


def _totals(one: Simulation) -> dict[str, Any]:
    total = whole(one)
    return {
        "strategy": one.strategy,
        "seed": one.seed,
        "steps": one.steps,
        "steps_simulated": len(one.simulated),
        "samples_per_step": one.samples_per_step,
        "seconds": one.seconds,
        "step_s": {"mean": step_s(one)} | {n: one.step_quantile(q) for n, q in QUANTILES.items()},
        "accelerator_seconds": {
            "held": total.held_s,
            "busy": total.busy_s,
            "idle": total.idle_s,
            "cold": total.cold_s,
        },
        "idle_fraction": one.idle_fraction,
        "usd": _usd(one),
        "tokens": one.tokens,
        "prompt_tokens": one.prompt_tokens,
        "tokens_per_s": one.tokens_per_s,
        "preemptions": one.preemptions,
    }


def _sweep(sweep: Sweep) -> dict[str, Any]:
    return {
        "axes": [{"field": axis.path, "values": list(axis.values)} for axis in sweep.axes],
        "cost": "usd" if sweep.in_usd else "accelerator_seconds",
        "points": [
            {"values": dict(point.values), **_totals(point.simulation)} for point in sweep.points
        ],
        "frontier": list(sweep.frontier),
        "knee": sweep.knee,
        "impossible": [
            {"strategy": each.strategy, "values": dict(each.values), "reason": each.reason}
            for each in sweep.impossible
        ],
    }


def _budget(answer: BudgetAnswer) -> dict[str, Any]:
    return {
        "usd": answer.budget_usd,
        "steps_asked": answer.steps_asked,
        "fits": answer.fits,
        "answer": answer.sentence,
        "best": None if answer.best is None else _way(answer.best),
        "ways": [_way(way) for way in answer.ways],
    }


def _way(way: Way) -> dict[str, Any]:
    return {
        "strategy": way.strategy,
        "max_instances": way.max_instances,
        "time_weight": way.time_weight,
        "steps": way.steps,
        "seconds": way.seconds,
        "epochs": way.epochs,
        "whole_job": {"seconds": way.simulation.seconds, "usd": way.usd},
    }


def _use(use: Use) -> dict[str, Any]:
    return {
        "accelerators_per_instance": use.accelerators,
        "held_s": use.held_s,
        "busy_s": use.busy_s,
        "idle_s": use.idle_s,
        "cold_s": use.cold_s,
        "usd": _usd(use),
    }


def _usd(of: Simulation | Use) -> dict[str, float | None]:
    return {"as_run": of.usd, "on_demand": of.usd_on_demand, "spot": of.usd_spot}


def _step(step: StepFound) -> dict[str, Any]:
    return {
        "step": step.step,
        "stands_for": step.stands_for,
        "seconds": step.seconds,
        "rollout_s": step.rollout_s,
        "scoring_s": step.scoring_s,
        "train_s": step.train_s,
        "actors": step.actors,
        "tokens": step.tokens,
        "prompt_tokens": step.prompt_tokens,
        "longest": step.longest,
        "moved": step.moved,
        "metrics": dict(step.metrics),
        "plan": dict(step.plan),
    }


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return value
