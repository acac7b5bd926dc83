"""One page about simulations that needs nothing but itself: nothing is loaded from elsewhere.

The same simulations give the same bytes. Without JavaScript only the words under the pointer are
missing; the tables say the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Any

import yaml

import rlhfless
from simulator.report import page_plots, page_tables
from simulator.report.contents import Report, compare, extent, label, step_s, told_apart
from simulator.report.markup import text
from simulator.report.units import duration, factor, held_scale, number, percent, usd
from simulator.result import Simulation
from simulator.sweep import Sweep

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_SPOT_STRIPES = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="spot" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="2.5" height="7" fill="var(--card)" '
    'opacity="0.75"/></pattern></defs></svg>'
)


def page(report: Report) -> str:
    """The whole page."""
    first = report.simulations[0]
    title = f"{first.job} on {first.cluster}"
    own = files("simulator.report")
    style, script = ((own / name).read_text("utf-8") for name in ("page.css", "page.js"))
    sections = "\n".join(_sections(report))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{text(title)}: simulation</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header>
<h1>{text(title)}</h1>
<p class="soft">Simulated, nothing was run. {text(_about(first))}{text(extent(first))}.</p>
{_verdict(report)}
{_cards(report)}
</header>
<main>
{_SPOT_STRIPES}
{sections}
</main>
<footer>rlhfless {text(rlhfless.__version__)}. All numbers: simulation.json.</footer>
<script>
{script}</script>
</body>
</html>
"""


def _about(first: Simulation) -> str:
    """The model and the algorithm, as far as the spec says."""
    model = first.spec.get("model", {}).get("path")
    algorithm = first.spec.get("algorithm", {}).get("name")
    told = ", ".join(str(each) for each in (model, algorithm) if each)
    return f"{told}; " if told else ""


def _verdict(report: Report) -> str:
    """The answer in a sentence, where there was a question."""
    runs = report.simulations
    if report.budget is not None:
        return f'<p class="verdict">{text(report.budget.sentence)}</p>'
    if report.sweep is not None and report.sweep.axes:
        return _knee(report, report.sweep)
    if len(runs) == 1:
        return ""
    return f'<p class="verdict">{text(_compared(report))}</p>'


def _compared(report: Report) -> str:
    """What the fastest, or beside the first the thriftiest, differs in from the first."""
    first, *others = report.simulations
    best = min(report.simulations, key=lambda run: run.seconds)
    if best is first:
        best = min(others, key=lambda run: run.held_s)
    against = compare(best, first)
    longer = best.seconds / first.seconds - 1
    told = f"{best.strategy} takes {percent(longer)} longer than {first.strategy}"
    if against.speedup >= 1:
        told = f"{best.strategy} is {factor(against.speedup)} as fast as {first.strategy}"
    if against.held_saved is None:
        return f"{told}."
    less = "less" if against.held_saved >= 0 else "more"
    return f"{told} and holds {percent(abs(against.held_saved))} {less} {report.noun} time."


def _knee(report: Report, sweep: Sweep) -> str:
    if sweep.knee is None:
        return ""
    run = sweep.points[sweep.knee].simulation
    cost = held_scale([run.held_s], report.noun).tell(run.held_s)
    if run.usd is not None:
        cost = usd(run.usd)
    told = f"{told_apart(sweep)} = {label(sweep, sweep.knee)} is the knee: {duration(run.seconds)}"
    return f'<p class="verdict">{text(told)} for {text(cost)}. More speed costs much more.</p>'


def _cards(report: Report) -> str:
    runs = report.simulations
    scale = held_scale((run.held_s for run in runs), report.noun)
    if len(runs) == 1:
        one = runs[0]
        cards = [
            ("Job", duration(one.seconds), f"a step takes {duration(step_s(one))}"),
            (f"{report.noun} time", scale.tell(one.held_s), f"{percent(one.idle_fraction)} idle"),
            ("Cost", usd(one.usd), f"{usd(one.usd_spot)} if all on spot"),
            ("Throughput", f"{number(one.tokens_per_s)} tokens/s", "of responses"),
        ]
    else:
        fastest = min(runs, key=lambda run: run.seconds)
        least = min(runs, key=lambda run: run.held_s)
        priced = [run for run in runs if run.usd is not None]
        cheapest = min(priced, key=lambda run: run.usd or 0.0) if priced else None
        cards = [
            ("Fastest", duration(fastest.seconds), fastest.strategy),
            (f"Least {report.noun} time", scale.tell(least.held_s), least.strategy),
            (
                ("Cheapest", usd(cheapest.usd), cheapest.strategy)
                if cheapest
                else ("Cost", usd(None), "the cluster has no prices")
            ),
        ]
    made = "".join(
        f"<div><dt>{text(name)}</dt><dd class='big'>{text(value)}</dd>"
        f"<dd class='soft small'>{text(more)}</dd></div>"
        for name, value, more in cards
    )
    return f'<dl class="cards">{made}</dl>'


def _sections(report: Report) -> list[str]:
    runs = report.simulations
    found = []
    if report.sweep is not None:
        found.append(_sweep(report, report.sweep))
    if len(runs) > 1:
        found.append(_section("Side by side", "", page_tables.comparison(report)))
    found.append(
        _section(
            "What instances do",
            "A window of typical steps; all on one scale of time.",
            page_plots.timelines(report),
        )
    )
    found.append(
        _section(
            f"Where {report.noun} time goes",
            "Held from start to stop: busy, idle, or starting.",
            page_plots.costs(report),
            *(_folded(report, "in numbers", one, page_tables.usage(report, one)) for one in runs),
        )
    )
    found.append(
        _section(
            "Steps",
            "Scoring is what it takes beyond the rollout; other is the controller and weights.",
            page_plots.steps(report),
            page_tables.quantiles(report),
        )
    )
    plans = [_folded(report, "step by step", one, page_tables.plans(one)) for one in runs]
    found.append(_section("Plans, and why", "What the controller decided.", *plans))
    if report.notes:
        found.append(_section("Note", "", _items(report.notes)))
    assumed = dict.fromkeys(each for one in runs for each in one.assumptions)
    found.append(_section("Assumed", "Not known, and taken for granted.", _items(assumed)))
    found.append(_section("Given", "", *_given(report)))
    return found


def _sweep(report: Report, sweep: Sweep) -> str:
    lead = f"Each dot is the whole job with another {told_apart(sweep)}: further to the left is "
    lead += "faster, further down is cheaper. On the line nothing is beaten in both."
    points = page_tables.sweep_points(report, sweep)
    parts = [f"<details><summary>All points in numbers</summary>{points}</details>"]
    if sweep.impossible:
        parts.append(page_tables.impossible(sweep))
    return _section("Time and cost", lead, page_plots.frontier(report, sweep), *parts)


def _folded(report: Report, what: str, one: Simulation, inside: str) -> str:
    """Open where it is the only one."""
    if len(report.simulations) == 1:
        return inside
    return f"<details><summary>{text(one.strategy)}, {what}</summary>{inside}</details>"


def _section(title: str, lead: str, *parts: str) -> str:
    told = f'<p class="soft">{text(lead)}</p>' if lead else ""
    return f"<section>\n<h2>{text(title)}</h2>{told}\n{chr(10).join(parts)}\n</section>"


def _items(told: Collection[str]) -> str:
    if not told:
        return "<p>Nothing.</p>"
    return f'<ul class="plain">{"".join(f"<li>{text(each)}</li>" for each in told)}</ul>'


def _given(report: Report) -> list[str]:
    """The cluster, the job as the first simulation ran it, and where others differ."""
    parts = [] if report.cluster is None else [page_tables.pools(report.cluster)]
    first, *others = report.simulations
    if first.spec:
        parts.append(_yaml(f"The job, as {first.strategy} runs it", first.spec))
    known = _flat(first.spec)
    for one in others:
        flat = _flat(one.spec)
        different = {key: flat.get(key) for key in flat if flat.get(key) != known.get(key)}
        if different:
            parts.append(_yaml(f"{one.strategy} differs in", different))
    return parts


def _yaml(title: str, what: Mapping[str, Any]) -> str:
    shown = yaml.safe_dump(dict(what), sort_keys=False, allow_unicode=True)
    return f"<details><summary>{text(title)}</summary><pre>{text(shown)}</pre></details>"


def _flat(spec: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """By dotted path."""
    found: dict[str, Any] = {}
    for key, value in spec.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found
