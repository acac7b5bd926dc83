"""What a replica tells Prometheus. No label names a tenant, a job or a key: whoever reads metrics
need not know who uses the service, and the number of series stays small.

The app's edge counts requests; the driver sets and counts the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from controller.platforms.base import InstanceState
from controller.service.states import STATES, State
from rlhfless.messages import FunctionName

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAIT_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


class ServiceMetrics:
    """A registry of its own, so that several apps in one process do not meet."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"rlhfless_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"rlhfless_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"rlhfless_{name}", text, labels, buckets=bounds, registry=registry)

        self._requests = counter(
            "http_requests", "Requests answered, by route template", "method", "route", "status"
        )
        self._request_s = histogram(
            "http_request_seconds", "Until an answer began", _REQUEST_S, "method", "route"
        )
        self._streams = gauge("event_streams_open", "Event streams open now")
        self._audit_lost = counter("audit_entries_lost", "Audit entries that could not be written")
        self._jobs = gauge("jobs", "Jobs of the service by state, ended ones not counted", "state")
        self._ended = counter("jobs_ended", "Jobs that this replica brought to an end", "state")
        self._driven = gauge("jobs_driven", "Jobs that this replica drives now")
        self._instances = gauge(
            "instances", "Function instances of this replica", "function", "state"
        )
        self._queue_wait = histogram(
            "queue_wait_seconds", "From accepted or resumed to its first instances", _WAIT_S
        )
        self._lease_losses = counter("lease_losses", "Leases lost to another replica")
        self._retries = counter("job_retries", "Jobs put back into the queue by a setback")
        self._function_s = counter("function_seconds", "Instance-seconds booked to tenants")
        self._estimates = gauge("estimates_running", "Estimates being simulated now")

    # --- set by the app ---------------------------------------------------------------------------

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """``route``: a template, never a path. ``seconds``: until the answer began; None if it
        never did."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        if seconds is not None:
            self._request_s.labels(method, route).observe(seconds)

    @contextmanager
    def event_stream(self) -> Iterator[None]:
        with self._streams.track_inprogress():
            yield

    def audit_lost(self) -> None:
        self._audit_lost.inc()

    @contextmanager
    def estimate(self) -> Iterator[None]:
        with self._estimates.track_inprogress():
            yield

    # --- set by the driver ------------------------------------------------------------------------

    def set_jobs(self, by_state: Mapping[State, int]) -> None:
        """Jobs of the whole service that have not ended; a state left out has none."""
        for state in STATES:
            self._jobs.labels(state).set(by_state.get(state, 0))

    def job_ended(self, state: State) -> None:
        self._ended.labels(state).inc()

    def set_driven(self, jobs: int) -> None:
        self._driven.set(jobs)

    def set_instances(self, counts: Mapping[tuple[FunctionName, InstanceState], int]) -> None:
        """By function and state (``cold``, ``busy``, ``idle``); one left out has none."""
        self._instances.clear()
        for (function, state), count in counts.items():
            self._instances.labels(function, state).set(count)

    def waited(self, seconds: float) -> None:
        """A job got its first instances after so long in the queue."""
        self._queue_wait.observe(seconds)

    def lease_lost(self) -> None:
        self._lease_losses.inc()

    def job_retried(self) -> None:
        self._retries.inc()

    def booked(self, seconds: float) -> None:
        self._function_s.inc(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)
