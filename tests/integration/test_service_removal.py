"""A job that ran on a real service is deleted: nothing of it stays, in Redis or in the store."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from controller.service.removal import LET_GO_S, clear_away
from controller.service.service import Service
from controller.service.settings import Settings
from rlhfless.errors import ConflictError, NotFoundError
from tests.support.runs import Workplace
from tests.support.services import Cluster, cluster, until

pytestmark = pytest.mark.slow


def left(place: Cluster, job: str) -> list[str]:
    """Keys and files that have to do with a job."""
    assert place.redis is not None
    with contextlib.closing(Redis(port=place.redis.port)) as redis:
        keys = [key.decode() for key in redis.keys(f"*{job}*")]
    return keys + [str(path) for path in place.data.rglob(f"*{job}*")]


def cleared(place: Cluster) -> int:
    """As a replica does it, ten minutes later."""
    assert place.redis is not None
    url, folder = place.redis.url, str(place.data)

    async def clear() -> int:
        redis = AsyncRedis.from_url(url)
        try:
            service = Service(redis, Settings(folder=folder, store=f"{folder}/store"))
            return await clear_away(service, lambda: time.time() + LET_GO_S)
        finally:
            await redis.aclose()

    return asyncio.run(clear())


def test_nothing_of_a_deleted_job_stays(place: Workplace) -> None:
    with cluster(place) as service:
        service.start()
        with service.client() as client:
            trackers = {"integrations": [{"type": "tensorboard"}]}
            job = client.jobs.submit(service.spec(training={"checkpoint_every": 2}, **trackers))
            assert client.jobs.wait(job).state == "succeeded"
            first = place.job_file.read_text()
            begun = f"checkpoint:{job.id}/2"
            other = client.jobs.submit(service.spec(model={"path": begun}, training={"steps": 40}))
            with pytest.raises(ConflictError):
                client.jobs.delete(job)
            client.jobs.cancel(other)
            used = client.tenant().function_seconds
            assert used > 0
            client.jobs.delete(job)
            with pytest.raises(NotFoundError):
                client.jobs.get(job)
            assert len(left(service, job.id)) > 10
            until(lambda: cleared(service), "nobody writes to the job any more")
            assert left(service, job.id) == []
            assert client.tenant().function_seconds >= used
            place.job_file.write_text(first)
            again = client.jobs.submit(service.spec(training={"steps": 1}))
            assert client.jobs.wait(again).state == "succeeded"
