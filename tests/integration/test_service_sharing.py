"""Jobs of several tenants on one service: they take turns, and nobody holds more than there is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlhfless import rest
from tests.support.runs import STEPS, Workplace
from tests.support.services import assert_whole, cluster, states, until

pytestmark = pytest.mark.slow

LONG = {"steps": 400}


def most_at_once(spans: Sequence[rest.Span]) -> int:
    """Instances there were at the busiest moment. One that ends as another begins is not beside
    it: instances that changed hands are in the books of both."""
    changes = [(span.start_at, 1) for span in spans]
    changes += [(span.end_at, -1) for span in spans if span.end_at is not None]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def test_a_short_job_need_not_wait_for_a_long_one(place: Workplace) -> None:
    with cluster(place, instances=5, patience=20) as service:  # a job needs four
        service.start()
        with service.client(tenant="first") as first, service.client(tenant="second") as second:
            long = first.jobs.submit(service.spec(training=LONG))
            until(lambda: first.jobs.get(long).progress.steps_done >= 1, "the long one runs")
            short = second.jobs.submit(service.spec(training={"steps": STEPS}))
            waiting = until(
                lambda: (job := second.jobs.get(short)).reason and job, "it says why it waits"
            )
            assert "instances" in waiting.reason
            assert second.jobs.wait(short, timeout_s=120).state == "succeeded"
            assert_whole(second, short.id, STEPS)
            until(lambda: first.jobs.get(long).state == "running", "the long one goes on", 60)
            assert states(first, long.id)[:4] == ["queued", "running", "queued", "running"]
            first.jobs.cancel(long)
            until(lambda: first.jobs.get(long).progress.instances == 0, "it lets go")
            spans = [*first.jobs.timeline(long), *second.jobs.timeline(short)]
            assert most_at_once(spans) <= 5


def test_two_jobs_run_side_by_side_where_there_is_room(place: Workplace) -> None:
    with cluster(place, instances=8) as service:
        service.start()
        with service.client(tenant="first") as first, service.client(tenant="second") as second:
            path = service.spec(training={"steps": 6})
            one, other = first.jobs.submit(path), second.jobs.submit(path)
            until(
                lambda: first.jobs.get(one).state == second.jobs.get(other).state == "running",
                "both run",
            )
            assert first.jobs.wait(one, timeout_s=120).state == "succeeded"
            assert second.jobs.wait(other, timeout_s=120).state == "succeeded"
            spans = [*first.jobs.timeline(one), *second.jobs.timeline(other)]
            assert most_at_once(spans) <= 8
            assert [m.metrics["reward/mean"] for m in first.jobs.metrics(one)] == [
                m.metrics["reward/mean"] for m in second.jobs.metrics(other)
            ]  # what others do changes nothing


def test_quotas_hold(place: Workplace) -> None:
    with cluster(place) as service:
        service.start()
        assert service.redis is not None
        words = ["tenants", "set", "first", "--max-jobs", "1", "--max-function-seconds", "1"]
        done = place.start(*words, REDIS_URL=service.redis.url).ended()
        assert done.code == 0, done.explained()
        with service.client(tenant="first") as first:
            job = first.jobs.submit(service.spec(training=LONG))
            until(
                lambda: "function-seconds" in (first.jobs.get(job).reason or ""),
                "it is stopped, before its first step where that takes long",
            )
            assert first.jobs.get(job).state == "queued"
            assert first.tenant().function_seconds >= 1
            words[-1] = "100000"
            assert place.start(*words, REDIS_URL=service.redis.url).ended().code == 0
            until(lambda: first.jobs.get(job).state == "running", "it goes on")
            second = first.jobs.submit(service.spec(training={"steps": 1}))
            until(
                lambda: "as many jobs as it may" in (first.jobs.get(second).reason or ""),
                "the second waits",
            )
            first.jobs.cancel(job)
            assert first.jobs.wait(second, timeout_s=120).state == "succeeded"
