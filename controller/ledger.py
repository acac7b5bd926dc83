"""The ledger: every second of every instance, booked once.

Platforms report state changes; the ledger turns them into seconds by state and function. An
instance is held from start to stop, and at every moment of that it is ``cold`` (not yet ready),
``busy`` (serving at least one call) or ``idle``, so busy + idle + cold = held holds by
construction. What several jobs use together is in the books of each by its ``weight``. Pure: time
comes in with each event (seconds of the loop's clock), never backwards.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from rlhfless.messages import FunctionName

Phase = Literal["cold", "busy", "idle"]
PHASES: tuple[Phase, ...] = ("cold", "busy", "idle")


@dataclass(frozen=True)
class Span:
    """One stretch of an instance's life, ``[start_s, end_s)``. ``weight``: how much of it these
    books are charged with."""

    instance: str
    function: FunctionName
    phase: Phase
    start_s: float
    end_s: float
    weight: float = 1.0

    @property
    def charged_s(self) -> float:
        return self.weight * (self.end_s - self.start_s)


@dataclass(frozen=True)
class Usage:
    """Seconds by phase. ``usd`` is None where a price is unknown (which is not 0)."""

    cold_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    usd: float | None = 0.0

    @property
    def held_s(self) -> float:
        return self.cold_s + self.busy_s + self.idle_s

    @property
    def idle_fraction(self) -> float:
        """Idle share of the held seconds; 0 where nothing was held."""
        return self.idle_s / self.held_s if self.held_s > 0 else 0.0

    def __add__(self, other: Usage) -> Usage:
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Usage(
            self.cold_s + other.cold_s,
            self.busy_s + other.busy_s,
            self.idle_s + other.idle_s,
            usd,
        )


@dataclass
class _Open:
    function: FunctionName
    phase: Phase
    since_s: float
    weight: float = 1.0


@dataclass
class Ledger:
    """Books of one run. ``prices`` in USD per held instance-hour, None where unknown.

    A second of an instance of several ``workers`` counts once for each of them, in seconds and in
    USD: all their accelerators are held. Spans are the instance's own.
    """

    prices: dict[FunctionName, float | None] = field(default_factory=dict)
    workers: dict[FunctionName, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    _open: dict[str, _Open] = field(default_factory=dict)
    _booked: dict[FunctionName, dict[Phase, float]] = field(default_factory=dict)
    """Sums over ``spans``: a job is asked what it has used after every step."""

    def started(
        self, instance: str, function: FunctionName, now_s: float, weight: float = 1.0
    ) -> None:
        assert instance not in self._open, f"{instance} started twice"
        self._open[instance] = _Open(function, "cold", now_s, weight)

    def weigh(self, instance: str, weight: float, now_s: float) -> None:
        """From now on, this is the part of the instance that is ours to pay for."""
        current = self._open.get(instance)
        if current is not None and current.weight != weight:
            self._close_span(instance, current, now_s)
            current.weight, current.since_s = weight, now_s

    def phase(self, instance: str, phase: Phase, now_s: float) -> None:
        """The instance enters a phase; entering the one it is in changes nothing."""
        current = self._open.get(instance)
        if current is None or current.phase == phase:
            return
        self._close_span(instance, current, now_s)
        current.phase, current.since_s = phase, now_s

    def stopped(self, instance: str, now_s: float) -> None:
        current = self._open.pop(instance, None)
        if current is not None:
            self._close_span(instance, current, now_s)

    def usage(self, now_s: float, since_s: float = float("-inf")) -> dict[FunctionName, Usage]:
        """Usage by function within ``[since_s, now_s)``, running instances included."""
        seconds: dict[FunctionName, dict[Phase, float]] = defaultdict(lambda: defaultdict(float))
        recent: list[Span] = []
        if since_s == float("-inf") and (not self.spans or self.spans[-1].end_s <= now_s):
            for function, booked in self._booked.items():
                seconds[function].update(booked)
        else:
            recent = self.spans_since(since_s)
        for span in (*recent, *self._running(now_s)):
            overlap = min(span.end_s, now_s) - max(span.start_s, since_s)
            if overlap > 0:
                seconds[span.function][span.phase] += overlap * span.weight
        return {f: self._priced(f, by_phase) for f, by_phase in seconds.items()}

    def total(self, now_s: float, since_s: float = float("-inf")) -> Usage:
        return sum(self.usage(now_s, since_s).values(), Usage())

    def spans_since(self, since_s: float) -> list[Span]:
        """Closed stretches that ended after ``since_s``, in the order of their ends."""
        first = bisect.bisect_right(self.spans, since_s, key=lambda span: span.end_s)
        return self.spans[first:]

    def all_spans(self, now_s: float) -> list[Span]:
        """Every stretch so far, running ones cut at ``now_s``."""
        return [*self.spans, *self._running(now_s)]

    def _priced(self, function: FunctionName, by_phase: dict[Phase, float]) -> Usage:
        price, workers = self.prices.get(function), self.workers.get(function, 1)
        cold, busy, idle = (by_phase[phase] * workers for phase in PHASES)
        usd = None if price is None else price * (cold + busy + idle) / 3600
        return Usage(cold, busy, idle, usd)

    def _running(self, now_s: float) -> list[Span]:
        return [
            Span(name, o.function, o.phase, o.since_s, max(now_s, o.since_s), o.weight)
            for name, o in self._open.items()
        ]

    def _close_span(self, instance: str, current: _Open, now_s: float) -> None:
        if now_s > current.since_s:
            span = Span(
                instance, current.function, current.phase, current.since_s, now_s, current.weight
            )
            self.spans.append(span)
            booked = self._booked.setdefault(current.function, dict.fromkeys(PHASES, 0.0))
            booked[current.phase] += span.charged_s
