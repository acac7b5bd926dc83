"""A service whose processes die, sleep or lose one another: no accepted job is lost, every step is
committed once, nothing hangs."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rlhfless import rest
from tests.support.runs import Workplace
from tests.support.services import Cluster, Replica, assert_whole, below, cluster, states, until

pytestmark = pytest.mark.slow

LONG = {"steps": 10}


def driver_of(service: Cluster) -> Replica:
    """The replica below which the job's functions run."""

    def look() -> Replica | None:
        busy = [r for r in service.replicas if r.running.alive() and below(r.pid, "rlhf-rollout")]
        return busy[0] if busy else None

    found: Replica = until(look, "a replica drives the job")
    return found


def begun(service: Cluster, steps: int = 1) -> rest.Job:
    """A job of ten steps that has done some."""
    with service.client() as client:
        job = client.jobs.submit(service.spec(training=LONG))
        until(lambda: client.jobs.get(job).progress.steps_done >= steps, f"{steps} steps are done")
        return job


def ended_well(service: Cluster, job: rest.Job) -> None:
    alive = next(replica for replica in service.replicas if replica.running.alive())
    with service.client(alive) as client:
        done = client.jobs.wait(job, timeout_s=120)
        assert done.state == "succeeded", done
        assert_whole(client, job.id, LONG["steps"])


def test_another_replica_goes_on_when_one_is_killed(place: Workplace) -> None:
    with cluster(place) as service:
        service.start()
        service.start()
        job = begun(service)
        lost = driver_of(service)
        lost.kill()
        killed_s = time.monotonic()
        other = next(replica for replica in service.replicas if replica is not lost)
        with service.client(other) as client:
            steps = client.jobs.get(job).progress.steps_done
            until(lambda: client.jobs.get(job).progress.steps_done > steps, "it goes on", 60)
            assert states(client, job.id) == ["queued", "running"]  # nobody needs to know
        print(f"goes on {time.monotonic() - killed_s:.1f} s after its replica was killed")
        ended_well(service, job)


def test_a_replica_that_slept_through_the_loss_of_its_job_changes_nothing(place: Workplace) -> None:
    with cluster(place) as service:
        service.start()
        service.start()
        job = begun(service)
        asleep = driver_of(service)
        os.kill(asleep.pid, signal.SIGSTOP)
        other = next(replica for replica in service.replicas if replica is not asleep)
        with service.client(other) as client:
            steps = client.jobs.get(job).progress.steps_done
            until(lambda: client.jobs.get(job).progress.steps_done > steps, "it goes on", 60)
        os.kill(asleep.pid, signal.SIGCONT)
        until(lambda: not below(asleep.pid, "rlhf-rollout"), "the sleeper lets go")
        assert asleep.running.alive()
        ended_well(service, job)


def test_a_rolling_restart_loses_nothing(place: Workplace) -> None:
    with cluster(place) as service:
        first, second = service.start(), service.start()
        job = begun(service)
        first.stop()
        third = service.start()
        second.stop()
        with service.client(third) as client:
            assert states(client, job.id) == ["queued", "running"]
        ended_well(service, job)


def test_jobs_survive_the_death_of_redis(place: Workplace) -> None:
    with cluster(place) as service:
        service.start()
        job = begun(service)
        assert service.redis is not None
        service.redis.kill()
        time.sleep(3)
        service.redis.start()
        ended_well(service, job)


def test_an_embedded_service_starts_its_redis_again(place: Workplace) -> None:
    with cluster(place, own_redis=False) as service:
        replica = service.start()
        job = begun(service)
        (redis,) = below(replica.pid, "redis-server")
        os.kill(redis, signal.SIGKILL)
        until(lambda: below(replica.pid, "redis-server"), "Redis runs again")
        ended_well(service, job)


def test_functions_that_are_killed_are_replaced(place: Workplace) -> None:
    with cluster(place, own_redis=False) as service:
        replica = service.start()
        job = begun(service)
        for function in ("rlhf-rollout", "rlhf-training", "rlhf-reward"):
            for pid in below(replica.pid, function)[:1]:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.3)
        ended_well(service, job)


def test_everything_dies_at_once(place: Workplace) -> None:
    with cluster(place) as service:
        first, second = service.start(), service.start()
        job = begun(service)
        assert service.redis is not None
        service.redis.kill()
        first.kill()
        second.kill()
        service.redis.start()
        service.start()
        ended_well(service, job)
