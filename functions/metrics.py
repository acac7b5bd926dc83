"""What an instance tells Prometheus. A registry of its own, so that tests and several functions in
one process do not meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from functions.execution import Execution
from functions.readings import Reading
from rlhfless.messages import Frame, FunctionName, PrefillDone, RolloutDone, Tokens

_Family: TypeAlias = GaugeMetricFamily | CounterMetricFamily | SummaryMetricFamily
_FAMILIES: dict[str, type[_Family]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "summary": SummaryMetricFamily,
}


class Metrics:
    """Names begin with ``rlhfless_``; every series carries the label ``function``. ``readings``:
    what the function's own code tells."""

    def __init__(
        self, function: FunctionName, readings: Callable[[], Sequence[Reading]] | None = None
    ) -> None:
        self._registry = CollectorRegistry()
        self._function = function

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ("function", *labels), registry=self._registry)

        self._calls = counter("rlhfless_calls", "Calls that ended, by outcome", "outcome")
        self._errors = counter("rlhfless_errors", "Failed calls, by category", "category")
        self._refused = counter("rlhfless_refused", "Calls not admitted, by HTTP status", "status")
        self._busy = counter("rlhfless_busy_seconds", "Seconds spent in calls, added up")
        self._tokens = counter("rlhfless_tokens", "Tokens, by kind", "kind")
        self._in_flight = Gauge(
            "rlhfless_calls_in_flight", "Calls now", ("function",), registry=self._registry
        )
        self._in_flight.labels(function).set(0)
        if readings is not None:
            self._registry.register(_Readings(function, readings))

    def began(self) -> None:
        self._in_flight.labels(self._function).inc()

    def ended(self, execution: Execution) -> None:
        self._in_flight.labels(self._function).dec()
        self._busy.labels(self._function).inc(execution.elapsed_s)
        self._calls.labels(self._function, execution.outcome).inc()
        if execution.outcome not in ("ok", "aborted"):
            self._errors.labels(self._function, execution.outcome).inc()

    def refused(self, status: int) -> None:
        self._refused.labels(self._function, str(status)).inc()

    def observe(self, frame: Frame) -> None:
        """Count the tokens a frame tells of (from any thread)."""
        if isinstance(frame, Tokens):
            self._tokens.labels(self._function, "generated").inc(len(frame.tokens))
        elif isinstance(frame, RolloutDone):
            self._tokens.labels(self._function, "prefilled").inc(frame.prefill_computed)
            self._tokens.labels(self._function, "prefill_loaded").inc(frame.prefill_loaded)
            self._tokens.labels(self._function, "prefill_reused").inc(frame.prefill_reused)
            self._tokens.labels(self._function, "prefill_saved").inc(frame.prefill_saved)
        elif isinstance(frame, PrefillDone):
            self._tokens.labels(self._function, "prefilled").inc(frame.tokens_computed)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Readings(Collector):
    """Asked at every scrape."""

    def __init__(self, function: str, readings: Callable[[], Sequence[Reading]]) -> None:
        self._function = function
        self._readings = readings

    def describe(self) -> list[Metric]:
        return []  # so that nobody is asked at registration

    def collect(self) -> Iterator[Metric]:
        families: dict[str, _Family] = {}
        for reading in self._readings():
            name = f"rlhfless_{reading.name}"
            if name not in families:
                labels = ["function", *reading.labels]
                families[name] = _FAMILIES[reading.kind](name, reading.text, labels=labels)
            family, values = families[name], [self._function, *reading.labels.values()]
            if isinstance(family, SummaryMetricFamily):
                family.add_metric(values, reading.count, reading.value)
            else:
                family.add_metric(values, reading.value)
        yield from families.values()
