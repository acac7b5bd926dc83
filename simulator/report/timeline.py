"""Instances over time, made ready to be drawn: a lane each while they are few, areas where not.

Pure geometry for the PNG and the page alike. Times are seconds from the beginning of the window.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from controller.ledger import Phase
from rlhfless.messages import FUNCTION_NAMES, FunctionName
from simulator.report.contents import PHASES
from simulator.result import InstanceSpan, Simulation

MAX_LANES = 72
MAX_BARS = 2500
"""Beyond either, lanes are no longer to be told apart: areas are drawn."""
BINS = 300
"""Columns of an area."""


@dataclass(frozen=True)
class Lane:
    """Spans of instances that followed each other; ``number`` counts a function's lanes from 0."""

    function: FunctionName
    number: int
    bars: tuple[InstanceSpan, ...]


@dataclass(frozen=True)
class Area:
    """Accelerators of a function (of one on hosts: instances) by phase, averaged over ``[BINS]``
    equal parts of the window."""

    function: FunctionName
    by_phase: dict[Phase, NDArray[np.float64]]

    @property
    def peak(self) -> float:
        return float(np.max(sum(self.by_phase.values())))


@dataclass(frozen=True)
class Timeline:
    """Either ``lanes`` or ``areas``. ``spot``: whether any instance of it was preemptible."""

    seconds: float
    lanes: tuple[Lane, ...]
    areas: tuple[Area, ...]
    spot: bool


def timeline(simulation: Simulation) -> Timeline | None:
    """None where nothing was held in the window."""
    begin, end = simulation.window_s
    spans = _within(simulation.spans, begin, end)
    if not spans:
        return None
    lanes = _lanes(spans)
    few = len(lanes) <= MAX_LANES and sum(len(lane.bars) for lane in lanes) <= MAX_BARS
    return Timeline(
        seconds=end - begin,
        lanes=lanes if few else (),
        areas=() if few else _areas(spans, end - begin),
        spot=any(span.spot for span in spans),
    )


def _within(spans: Sequence[InstanceSpan], begin: float, end: float) -> list[InstanceSpan]:
    """Cut at the window and moved to its beginning, by start."""
    cut = [
        replace(span, start_s=max(span.start_s, begin) - begin, end_s=min(span.end_s, end) - begin)
        for span in spans
        if span.end_s > begin and span.start_s < end
    ]
    return sorted(cut, key=lambda span: (span.start_s, span.end_s, span.instance))


def _lanes(spans: Sequence[InstanceSpan]) -> tuple[Lane, ...]:
    """By function; an instance takes the first lane that is free for all its life."""
    lives: dict[FunctionName, dict[str, list[InstanceSpan]]] = defaultdict(dict)
    for span in spans:
        lives[span.function].setdefault(span.instance, []).append(span)
    lanes: list[Lane] = []
    for function in FUNCTION_NAMES:
        free: list[int] = []
        taken: list[tuple[float, int]] = []  # until when, which lane
        bars: list[list[InstanceSpan]] = []
        for life in lives.get(function, {}).values():  # by their start
            while taken and taken[0][0] <= life[0].start_s:
                heapq.heappush(free, heapq.heappop(taken)[1])
            if not free:
                heapq.heappush(free, len(bars))
                bars.append([])
            lane = heapq.heappop(free)
            bars[lane] += _merged(life)
            heapq.heappush(taken, (max(span.end_s for span in life), lane))
        lanes += [Lane(function, number, tuple(each)) for number, each in enumerate(bars)]
    return tuple(lanes)


def _merged(life: Sequence[InstanceSpan]) -> list[InstanceSpan]:
    """Neighbouring stretches of the same phase are one bar."""
    bars: list[InstanceSpan] = []
    for span in life:
        last = bars[-1] if bars else None
        if last is not None and last.phase == span.phase and last.end_s == span.start_s:
            bars[-1] = replace(last, end_s=span.end_s)
        else:
            bars.append(span)
    return bars


def _areas(spans: Sequence[InstanceSpan], seconds: float) -> tuple[Area, ...]:
    by_key: dict[tuple[FunctionName, Phase], list[InstanceSpan]] = defaultdict(list)
    for span in spans:
        by_key[span.function, span.phase].append(span)
    functions = {function for function, _ in by_key}
    return tuple(
        Area(function, {phase: _held(by_key[function, phase], seconds) for phase in PHASES})
        for function in FUNCTION_NAMES
        if function in functions
    )


def _held(spans: Sequence[InstanceSpan], seconds: float) -> NDArray[np.float64]:
    """``[BINS]`` accelerators held on average."""
    edges = np.linspace(0.0, seconds, BINS + 1)
    weights = np.array([span.accelerators or 1 for span in spans], dtype=float)
    starts = np.array([span.start_s for span in spans], dtype=float)
    ends = np.array([span.end_s for span in spans], dtype=float)
    held = _ramps(edges, starts, weights) - _ramps(edges, ends, weights)
    found: NDArray[np.float64] = np.maximum(np.diff(held) / (seconds / BINS), 0.0)
    return found


def _ramps(
    at: NDArray[np.float64], begins: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The sum of ``weight * max(0, at - begin)``."""
    order = np.argsort(begins, kind="stable")
    before = np.searchsorted(begins[order], at, side="right")
    slopes = np.concatenate([[0.0], np.cumsum(weights[order])])
    offsets = np.concatenate([[0.0], np.cumsum(weights[order] * begins[order])])
    found: NDArray[np.float64] = slopes[before] * at - offsets[before]
    return found
