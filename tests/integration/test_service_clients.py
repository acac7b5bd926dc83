"""Commands and clients as people use them, against a service of real processes that is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from pathlib import Path

import pytest

from rlhfless import AsyncClient
from tests.support.runs import Workplace
from tests.support.services import Cluster, assert_whole, cluster, until

pytestmark = pytest.mark.slow
STEPS = 10


def environment(service: Cluster) -> dict[str, str]:
    return {"RLHFLESS_URL": service.replicas[-1].url, "RLHFLESS_API_KEY": service.key()}


def test_what_a_person_types(place: Workplace, tmp_path: Path) -> None:
    with cluster(place, own_redis=False) as service:
        service.start()
        asked = environment(service)
        job_file = service.spec(name="mine")
        made = place.run("submit", job_file, "--watch", **asked)
        assert made.code == 0, made.explained()
        for text in ("held-out accuracy before training", "step 3/3", "succeeded", "Cost:"):
            assert text in made.out, made.explained()
        out = str(tmp_path / "weights")
        for words in (
            ("list",),
            ("show", "mine"),
            ("usage", "mine", "--steps"),
            ("metrics", "mine"),
            ("rollouts", "mine", "--tokens", "--limit", "1"),
            ("logs", "mine"),
            ("download", "mine", "--out", out, "--step", "3"),
        ):
            ended = place.run(*words, **asked)
            assert ended.code == 0, ended.explained()
            assert ended.out or words[0] == "logs"
        from transformers import AutoModelForCausalLM, AutoTokenizer

        AutoModelForCausalLM.from_pretrained(out)
        AutoTokenizer.from_pretrained(out)


def test_who_watches_misses_nothing_when_the_service_is_killed(place: Workplace) -> None:
    with cluster(place) as service:  # a Redis of its own: the second replica has another port
        first = service.start()
        asked = environment(service)
        job_file = service.spec(training={"steps": STEPS})
        job = place.run("submit", job_file, **asked).out.strip()
        watching = place.start("watch", job, "--json", **asked)

        def told(steps: int) -> bool:
            return watching.so_far().out.count('"type":"step"') >= steps

        until(lambda: told(2), "two steps are told")
        first.kill()
        port = first.url.rpartition(":")[2]
        again = place.start(
            "serve", "--port", port, "--data", str(service.data), REDIS_URL=redis_url(service)
        )
        ended = watching.ended()
        assert ended.code == 0, ended.explained()
        events = [json.loads(line) for line in ended.out.splitlines()]
        ids = [event["id"] for event in events]
        steps = [event["data"]["step"] for event in events if event["type"] == "step"]
        assert len(set(ids)) == len(ids)
        assert steps == list(range(1, STEPS + 1))
        with service.client(first) as client:
            assert [event.id for event in client.jobs.events(job, follow=False)] == ids
            assert_whole(client, job, STEPS)
        again.signal(signal.SIGTERM)
        assert again.ended().code == 0


def redis_url(service: Cluster) -> str:
    assert service.redis is not None
    return service.redis.url


def test_who_stops_watching_leaves_the_job_running(place: Workplace) -> None:
    with cluster(place, own_redis=False) as service:
        service.start()
        asked = environment(service)
        job = place.run("submit", service.spec(training={"steps": STEPS}), **asked).out.strip()
        watching = place.start("watch", job, **asked)
        until(lambda: "step 1/" in watching.so_far().out, "a step is shown")
        watching.signal(signal.SIGINT)
        ended = watching.ended()
        assert ended.code == 130, ended.explained()
        assert f"the job goes on; watch it again: rlhfless watch {job}" in ended.err
        with service.client() as client:
            assert client.jobs.wait(job).state == "succeeded"
        assert place.run("watch", job, **asked).code == 0


def test_both_clients_at_once(place: Workplace) -> None:
    """A client may be shared by threads, an awaiting one by tasks."""
    with cluster(place, own_redis=False) as service:
        service.start()
        with service.client() as client:
            job = client.jobs.submit(service.spec())
            heard: list[list[str]] = []

            def listen() -> None:
                heard.append([event.id for event in client.jobs.events(job)])

            threads = [threading.Thread(target=listen) for _ in range(3)]
            for thread in threads:
                thread.start()

            async def listen_too() -> None:
                async with AsyncClient(client.url, service.key()) as other:

                    async def one() -> list[str]:
                        return [event.id async for event in other.jobs.events(job)]

                    heard.extend(await asyncio.gather(*(one() for _ in range(3))))

            asyncio.run(listen_too())
            for thread in threads:
                thread.join()
            assert len(heard) == 6
            assert all(each == heard[0] for each in heard)
            assert client.jobs.get(job).state == "succeeded"
