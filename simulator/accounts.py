"""From a ledger of a simulation to the accelerator-seconds and dollars of the job."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.ledger import Ledger, Span
from rlhfless.messages import FunctionName
from simulator.platform.capacity import Grant
from simulator.platform.lives import Holding
from simulator.result import InstanceSpan, Use


@dataclass(frozen=True)
class Segment:
    """A stretch of simulated time that the job has ``weight`` times."""

    start_s: float
    end_s: float
    weight: float


class Accounts:
    """``holdings``: by instance, what it held from when on."""

    def __init__(
        self,
        ledger: Ledger,
        holdings: Mapping[str, Sequence[Holding]],
        segments: Sequence[Segment],
        ended_s: float,
    ) -> None:
        self._spans = ledger.all_spans(ended_s)
        self._holdings = holdings
        self._starts = [segment.start_s for segment in segments]
        self._segments = segments
        self._before = [0.0]
        for each in segments:
            self._before.append(self._before[-1] + each.weight * (each.end_s - each.start_s))
        self._ended_s = ended_s

    @property
    def seconds(self) -> float:
        """Of the whole job."""
        return self._weighted(self._ended_s)

    def usage(self) -> dict[FunctionName, Use]:
        found: dict[FunctionName, Use] = {}
        for span in self._spans:
            grant = self._grant(span)
            seconds = self._weighted(span.end_s) - self._weighted(span.start_s)
            if seconds <= 0:
                continue
            accelerators = 0 if grant is None else grant.accelerators
            use = found.get(span.function, Use(accelerators))
            field = f"{span.phase}_s"
            found[span.function] = replace(
                use,
                accelerators=max(use.accelerators, accelerators),
                usd=_plus(use.usd, _usd(grant, seconds, None)),
                usd_on_demand=_plus(use.usd_on_demand, _usd(grant, seconds, False)),
                usd_spot=_plus(use.usd_spot, _usd(grant, seconds, True)),
                **{field: getattr(use, field) + seconds * max(1, accelerators)},
            )
        return {function: _beside(found[function], found) for function in sorted(found)}

    def spans(self, begin_s: float, end_s: float) -> tuple[InstanceSpan, ...]:
        """What lies in a window, cut to it."""
        found = []
        for span in self._spans:
            start, end = max(span.start_s, begin_s), min(span.end_s, end_s)
            if end <= start:
                continue
            grant = self._grant(span)
            found.append(
                InstanceSpan(
                    instance=span.instance,
                    function=span.function,
                    pool="" if grant is None else grant.pool.name,
                    spot=grant is not None and grant.spot,
                    accelerators=0 if grant is None else grant.accelerators,
                    phase=span.phase,
                    start_s=start,
                    end_s=end,
                )
            )
        return tuple(sorted(found, key=lambda s: (s.function, s.instance, s.start_s)))

    def _grant(self, span: Span) -> Grant | None:
        held = self._holdings[span.instance]
        index = bisect.bisect_right(held, span.start_s, key=lambda each: each.start_s) - 1
        return held[max(0, index)].grant

    def _weighted(self, time_s: float) -> float:
        """Seconds of the job up to a moment of the simulation."""
        index = max(0, bisect.bisect_right(self._starts, time_s) - 1)
        segment = self._segments[index]
        within = min(time_s, segment.end_s) - segment.start_s
        return self._before[index] + segment.weight * max(0.0, within)


def _usd(grant: Grant | None, seconds: float, spot: bool | None) -> float | None:
    """``spot`` None: as it was held. A host's CPUs cost nothing beside its accelerators."""
    if grant is None:
        return 0.0
    total = 0.0
    for node, count in grant.parts:
        price = node.pool.usd_per_hour(node.spot if spot is None else spot)
        if price is None:
            return None
        total += price * count * seconds / 3600
    return total


def _beside(use: Use, uses: Mapping[FunctionName, Use]) -> Use:
    """A function's use; on the host's CPUs it costs nothing beside accelerators of a known price,
    and nobody knows what beside others."""
    if use.accelerators:
        return use
    return replace(
        use,
        usd=_if_known(use.usd, (each.usd for each in uses.values())),
        usd_on_demand=_if_known(use.usd_on_demand, (each.usd_on_demand for each in uses.values())),
        usd_spot=_if_known(use.usd_spot, (each.usd_spot for each in uses.values())),
    )


def _if_known(usd: float | None, others: Iterable[float | None]) -> float | None:
    return None if None in others else usd


def _plus(total: float | None, more: float | None) -> float | None:
    return None if total is None or more is None else total + more
