"""A service whose disks are full: jobs wait and say for what, and go on when there is room."""

from __future__ import annotations

import os
import signal

import pytest

from benchmarks.faults.disks import Disk
from rlhfless import Client, rest
from rlhfless.errors import CapacityError
from tests.support.runs import Workplace
from tests.support.services import Cluster, assert_whole, below, cluster, until

pytestmark = pytest.mark.slow

STEPS = 10


def begun(service: Cluster, client: Client) -> rest.Job:
    job = client.jobs.submit(service.spec(training={"steps": STEPS}))
    until(lambda: client.jobs.get(job).progress.steps_done >= 1, "a step is done")
    return job


def ended_well(client: Client, job: rest.Job) -> None:
    done = client.jobs.wait(job, timeout_s=120)
    assert done.state == "succeeded", done
    assert_whole(client, job.id, STEPS)


def mounted(disk: Disk) -> Disk:
    if not disk.mounted:
        pytest.skip("mounting a small disk needs privileges")
    return disk


def test_a_job_waits_for_room_in_the_store(place: Workplace) -> None:
    with Disk(place.folder / "data") as disk, cluster(place) as service:
        mounted(disk)
        replica = service.start()
        with service.client() as client:
            job = begun(service, client)
            disk.fill()

            def waits() -> bool:
                found = client.jobs.get(job)
                assert found.state in ("queued", "running"), found
                return found.state == "queued" and "o space left" in (found.reason or "")

            until(waits, "it waits, and says for what")
            for pid in below(replica.pid, "rlhf-"):  # whatever is lost meanwhile comes back, too
                os.kill(pid, signal.SIGKILL)
            until(waits, "it waits again")
            disk.free()
            ended_well(client, job)


def test_a_replica_starts_on_a_full_disk_and_serves_what_there_is(place: Workplace) -> None:
    with Disk(place.folder / "data") as disk, cluster(place) as service:
        mounted(disk)
        first = service.start()
        with service.client() as client:
            job = begun(service, client)
        disk.fill()
        first.kill()
        second = service.start()
        with service.client(second) as client:
            assert client.jobs.get(job).progress.steps_done >= 1
            disk.free()
            ended_well(client, job)


def test_a_job_outlives_a_redis_that_cannot_write(place: Workplace) -> None:
    with Disk(place.folder / "redis") as disk, cluster(place) as service:
        mounted(disk)
        service.start()
        with service.client() as client:
            job = begun(service, client)
            disk.fill()

            def refused() -> bool:
                """No job is accepted that might be lost."""
                with Client(client.url, service.key(), retries=0) as hasty:
                    try:
                        made = hasty.jobs.submit(service.spec(training={"steps": 1}))
                    except CapacityError as error:
                        assert "persist" in error.detail
                        return True
                    client.jobs.cancel(made)
                return False

            until(refused, "nothing is accepted any more")
            assert client.jobs.get(job).state in ("queued", "running")
            disk.free()
            ended_well(client, job)
