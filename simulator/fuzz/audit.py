"""A ledger that is kept twice: as the controller keeps it, and as a plain list of what was told."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.ledger import Ledger, Phase, Span, Usage
from controller.platforms.base import Platform
from rlhfless.messages import FunctionName
from simulator.fuzz.trace import Violation

_CLOSE = 1e-6
"""Seconds; sums of floats in another order differ by less."""


@dataclass
class _Stint:
    """An instance's time from start to stop: when it came into which phase; None: it stopped."""

    function: FunctionName
    told: list[tuple[float, Phase | None]]

    @property
    def over(self) -> bool:
        return self.told[-1][1] is None


@dataclass
class AuditedLedger(Ledger):
    """Raises ``Violation`` where it is told what cannot be. ``stints``: by instance; one that
    sleeps and wakes again has several."""

    stints: dict[str, list[_Stint]] = field(default_factory=dict)
    now_s: float = 0.0

    def started(
        self, instance: str, function: FunctionName, now_s: float, weight: float = 1.0
    ) -> None:
        if self._runs(instance):
            raise Violation(f"{instance} is started twice")
        super().started(instance, function, now_s, weight)
        self.stints.setdefault(instance, []).append(_Stint(function, []))
        self._tell(instance, "cold", now_s)

    def phase(self, instance: str, phase: Phase, now_s: float) -> None:
        super().phase(instance, phase, now_s)
        if self._runs(instance):
            self._tell(instance, phase, now_s)

    def stopped(self, instance: str, now_s: float) -> None:
        super().stopped(instance, now_s)
        if self._runs(instance):
            self._tell(instance, None, now_s)

    @property
    def running(self) -> list[str]:
        return [name for name in self.stints if self._runs(name)]

    def held_s(self, now_s: float) -> float:
        """Of all instances, by what was told alone."""
        return sum(
            (stint.told[-1][0] if stint.over else now_s) - stint.told[0][0]
            for stints in self.stints.values()
            for stint in stints
        )

    def _runs(self, instance: str) -> bool:
        return instance in self.stints and not self.stints[instance][-1].over

    def _tell(self, instance: str, phase: Phase | None, now_s: float) -> None:
        if now_s < self.now_s:
            raise Violation(f"the ledger is told of {instance} at {now_s}, after {self.now_s}")
        self.now_s = now_s
        self.stints[instance][-1].told.append((now_s, phase))

    # --- what must hold ---------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """Every second of every instance is booked once, in the phase it was told."""
        spans: dict[str, list[Span]] = defaultdict(list)
        for span in self.all_spans(now_s):
            spans[span.instance].append(span)
        seconds: dict[FunctionName, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for instance, stints in self.stints.items():
            booked = sorted(spans.pop(instance, []), key=lambda s: (s.start_s, s.end_s))
            told = [each for stint in stints for each in _spans(instance, stint, now_s)]
            if _joined(booked) != _joined(told):
                raise Violation(f"{instance} is booked as {booked}; told was {told}")
            for span in told:
                seconds[span.function][span.phase] += span.end_s - span.start_s
        if spans:
            raise Violation(f"{', '.join(spans)} are booked, but never started")
        self._check_usage(now_s, seconds)

    def _check_usage(
        self, now_s: float, seconds: Mapping[FunctionName, Mapping[str, float]]
    ) -> None:
        found = self.usage(now_s)
        for function, told in seconds.items():
            usage = found.get(function, Usage())
            booked = {"cold": usage.cold_s, "busy": usage.busy_s, "idle": usage.idle_s}
            for phase, seconds_booked in booked.items():
                if not math.isclose(seconds_booked, told[phase], abs_tol=_CLOSE):
                    raise Violation(f"{function} was {phase} {told[phase]} s, booked {booked}")
            if not math.isclose(usage.held_s, sum(told.values()), abs_tol=_CLOSE):
                raise Violation(f"{function} was held {sum(told.values())} s, not {usage.held_s}")

    def check_against(self, platform: Platform, most: Mapping[FunctionName, int]) -> None:
        """What runs is what is booked as running, in the phase it is in; of each function ``most``
        instances."""
        instances = platform.instances()
        for function, count in Counter(i.function for i in instances).items():
            if count > most[function]:
                raise Violation(f"{count} instances of {function} run, {most[function]} may")
        states = {i.id: i.state for i in instances}
        booked = {name: one.phase for name, one in self._open.items()}
        for name in sorted(states.keys() | booked.keys()):
            state, phase = states.get(name), booked.get(name)
            # Before it is held an instance is cold, and after its last call it may be put away.
            fine = state == phase or state == "stopping" or "cold" in (state, phase)
            if not fine:
                raise Violation(f"{name} is {state or 'not there'}, and booked as {phase}")


def _spans(instance: str, stint: _Stint, now_s: float) -> list[Span]:
    ends = [*stint.told[1:], (max(now_s, stint.told[-1][0]), None)]
    return [
        Span(instance, stint.function, phase, start_s, end_s)
        for (start_s, phase), (end_s, _) in zip(stint.told, ends, strict=True)
        if phase is not None
    ]


def _joined(spans: list[Span]) -> list[tuple[str, str, float, float]]:
    """Without empty ones, and neighbours of one phase as one."""
    joined: list[tuple[str, str, float, float]] = []
    for span in spans:
        if span.end_s <= span.start_s:
            continue
        start_s = span.start_s
        last = joined[-1] if joined else None
        if last is not None and (*last[:2], last[3]) == (span.function, span.phase, start_s):
            start_s = joined.pop()[2]
        joined.append((span.function, span.phase, start_s, span.end_s))
    return joined
