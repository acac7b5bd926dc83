"""What a run found: the table that is printed, and the results that are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common import Result
from benchmarks.load.reads import PEER, Rate, Read
from benchmarks.load.traffic import Traffic

_QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True)
class Costs:
    """Of each process, in cores, while the load was on. ``functions``: how many processes."""

    cores: Mapping[str, float]
    replica_mib: float
    redis_mib: float
    redis_connections: int
    functions: int


@dataclass(frozen=True)
class Found:
    """``rates``: requests a second at most, by kind, with nothing else asked."""

    read: Read
    rates: Mapping[str, Rate]
    traffic: Traffic
    costs: Costs

    def ms(self) -> dict[str, dict[str, float]]:
        """Quantiles by kind."""
        delays = [delay for stream in self.traffic.streams for delay in stream.delays_s]
        seconds = {
            **self.read.latencies_s,
            "POST job": self.traffic.submit_s,
            "event, until it is told": delays,
            "load sent late": self.read.late_s,
        }
        return {
            kind: {name: 1000 * quantile(values, q) for name, q in _QUANTILES.items()}
            for kind, values in seconds.items()
        }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that no more than ``1 - share`` of all are above; NaN of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def table(found: Found) -> str:
    read, traffic, costs = found.read, found.traffic, found.costs
    ms = found.ms()
    lines = [
        f"{'':<26} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'p99 ratio':>9} {'at most/s':>9}"
    ]
    for kind, quantiles in ms.items():
        line = f"{kind:<26} " + " ".join(f"{value:8.1f}" for value in quantiles.values())
        if kind in read.latencies_s:
            ratio = quantiles["p99"] / ms[PEER]["p99"]
            line += f" {ratio:9.1f} {found.rates[kind].per_s:9.0f}"
        lines.append(line)
    streams = traffic.streams
    told = sum(len(stream.ids) for stream in streams)
    live = sum(len(stream.delays_s) for stream in streams) / traffic.seconds
    cores = ", ".join(f"{name} {used:.2f}" for name, used in costs.cores.items())
    lines += [
        "",
        f"submissions  {len(traffic.accepted)}, by {traffic.sent} requests of which "
        f"{traffic.answers} were answered",
        f"streams      {len(streams)}, {traffic.open_at_once} open at once, cut "
        f"{sum(stream.cuts for stream in streams)} times; {told} events told, {live:.0f} a second",
        f"cores        {cores}, reads {read.cpu_s / read.seconds:.2f}, streams and submissions "
        f"{traffic.cpu_s / traffic.seconds:.2f}",
        f"memory       replica {costs.replica_mib:.0f} MiB, redis {costs.redis_mib:.0f} MiB with "
        f"{costs.redis_connections} connections; {costs.functions} function processes",
    ]
    return "\n".join(lines)


def results(found: Found) -> list[Result]:
    ms, rates = found.ms(), found.rates
    lines = []
    for kind in found.read.latencies_s:
        if kind != PEER:
            lines += [
                Result.time(f"{kind}: p99", ms[kind]["p99"], ms[PEER]["p99"], "ms"),
                Result.rate(f"{kind}: at most", rates[kind].per_s, rates[PEER].per_s, "requests/s"),
            ]
    return lines


def facts(found: Found) -> dict[str, Any]:
    return {"ms": found.ms(), "costs": vars(found.costs)}
