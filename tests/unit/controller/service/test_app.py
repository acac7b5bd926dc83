"""The API over a Redis in memory. What Redis does by waiting is in tests/integration."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from controller.service.app import create_app
from controller.service.service import Service as Parts
from controller.service.settings import Settings
from tests.support.service_api import SPEC, Api

NO_JOB = "job-" + "0" * 28


class Service(Api):
    """``client`` has no key; the others are of two tenants."""

    @property
    def client(self) -> httpx.AsyncClient:
        return self.nobody


def with_service(test: Callable[[Service], Awaitable[None]]) -> None:
    async def main() -> None:
        service = Service()
        await test(service)
        service.server.connected = True
        await service.redis.aclose()

    asyncio.run(main())


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert {"type", "title", "detail", "category"} <= problem.keys()
    return problem


def test_a_job_is_submitted_seen_and_cancelled() -> None:
    async def test(service: Service) -> None:
        user = await service.user("acme", "submit")
        made = await user.post("/v1/jobs", json=SPEC)
        assert made.status_code == 201
        job = made.json()
        assert (job["state"], job["reason"], job["object"]) == ("queued", None, "rlhf.job")
        assert job["spec"]["algorithm"]["name"] == "grpo"  # the spec is resolved
        assert (await user.get(made.headers["location"])).json() == job
        assert (await user.get("/v1/jobs")).json()["data"] == [job]
        cancelled = await user.post(f"/v1/jobs/{job['id']}/cancel")
        assert cancelled.json()["state"] == "cancelled"
        assert cancelled.json()["states"].keys() == {"queued", "cancelled"}
        again = await user.post(f"/v1/jobs/{job['id']}/cancel")
        assert again.json() == cancelled.json()

    with_service(test)


def test_an_idempotency_key_makes_one_job() -> None:
    async def test(service: Service) -> None:
        user = await service.user("acme", "submit")
        headers = {"Idempotency-Key": "once"}
        first = await user.post("/v1/jobs", json=SPEC, headers=headers)
        await user.post(f"/v1/jobs/{first.json()['id']}/cancel")
        again = await user.post("/v1/jobs", json=SPEC, headers=headers)
        assert (again.status_code, again.json()) == (201, first.json())
        other = await user.post("/v1/jobs", json={**SPEC, "seed": 1}, headers=headers)
        assert refused(other, 409)["param"] == "Idempotency-Key"
        assert len((await user.get("/v1/jobs")).json()["data"]) == 1

    with_service(test)


def test_pages_go_on_after_a_job() -> None:
    async def test(service: Service) -> None:
        user = await service.user("acme", "submit")
        made = {(await user.post("/v1/jobs", json=SPEC)).json()["id"] for _ in range(5)}
        seen: list[str] = []
        more = True
        while more:
            params: dict[str, Any] = {"limit": 2} | ({"after": seen[-1]} if seen else {})
            page = (await user.get("/v1/jobs", params=params)).json()
            seen += [job["id"] for job in page["data"]]
            more = page["has_more"]
        assert len(seen) == 5
        assert set(seen) == made

    with_service(test)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 422, None),
        (b"{", 422, None),
        (b"\xff", 422, None),
        (b"[]", 422, None),
        (json.dumps({**SPEC, "seed": float("nan")}).encode(), 422, None),
        (b'{"metadata": {"x": "\\ud800"}}', 422, None),
        (b"[" * 4000, 422, None),
        (b"{}", 422, "model"),
        (json.dumps({**SPEC, "modle": 1}).encode(), 422, "modle"),
        (json.dumps({**SPEC, "name": "../x"}).encode(), 422, "name"),
        (json.dumps({**SPEC, "training": {"learning_rate": "inf"}}).encode(), 422, None),
        (json.dumps({**SPEC, "metadata": {"x": "y" * 5000}}).encode(), 413, None),
    ],
)
def test_a_bad_body_is_refused_with_a_reason(body: bytes, status: int, param: str | None) -> None:
    async def test(service: Service) -> None:
        user = await service.user("acme", "submit")
        problem = refused(await user.post("/v1/jobs", content=body), status)
        assert problem.get("param") == param
        assert problem["category"] == "user"
        assert (await user.get("/v1/jobs")).json()["data"] == []

    with_service(test)


@pytest.mark.parametrize("digits", [18, 25, 400, 4000])
def test_a_large_number_is_kept_or_refused(digits: int) -> None:
    async def test(service: Service) -> None:
        user = await service.user("acme", "submit")
        made = await user.post("/v1/jobs", json={**SPEC, "seed": 10**digits})
        if made.status_code == 201:
            kept = await user.get(made.headers["location"])
            assert kept.json()["spec"]["seed"] == 10**digits
        else:
            assert "too large" in refused(made, 422)["detail"]

    with_service(test)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/jobs?limit=0", 422),
        ("/v1/jobs?limit=x", 422),
        ("/v1/jobs?after=x", 404),
        ("/v1/jobs/x", 404),
        ("/v1/jobs/..%2f..%2fetc", 404),
        ("/v1/jobs/%00", 404),
        ("/v1/nothing", 404),
    ],
)
def test_a_bad_question_is_refused_with_a_reason(path: str, status: int) -> None:
    async def test(service: Service) -> None:
        refused(await (await service.user("acme", "read")).get(path), status)

    with_service(test)


def test_what_there_is_not_is_told_with_where_to_look() -> None:
    async def test(service: Service) -> None:
        nothing = refused(await service.client.get("/v1/nothing?key=x"), 404)
        assert nothing["detail"] == "there is no GET /v1/nothing"
        assert nothing["type"] == "urn:rlhfless:NotFoundError"
        wrong = refused(await service.client.put("/v1/jobs"), 405)
        assert (wrong["title"], wrong["detail"]) == (
            "Method Not Allowed",
            "PUT /v1/jobs cannot be asked for",
        )
        assert "/docs" in nothing["hint"] == wrong["hint"]
        user = await service.user("acme", "read")
        assert refused(await user.get("/v1/jobs?after=x"), 404)["param"] == "after"

    with_service(test)


def test_events_come_in_pages_and_as_a_stream_that_can_be_taken_up() -> None:
    async def test(service: Service) -> None:
        user = await service.user("acme", "submit")
        job = (await user.post("/v1/jobs", json=SPEC)).json()["id"]
        await user.post(f"/v1/jobs/{job}/cancel")
        path = f"/v1/jobs/{job}/events"
        first = (await user.get(path, params={"limit": 1})).json()
        assert first["has_more"]
        after = {"after": first["data"][0]["id"]}
        rest = (await user.get(path, params=after)).json()
        assert not rest["has_more"]
        events = first["data"] + rest["data"]
        assert [event["data"]["state"] for event in events] == ["queued", "cancelled"]
        stream = {"Accept": "text/event-stream"}
        whole = await user.get(path, headers=stream)
        assert whole.headers["content-type"].startswith("text/event-stream")
        assert parsed(whole.text) == events
        taken_up = await user.get(path, headers=stream | {"Last-Event-ID": events[0]["id"]})
        assert parsed(taken_up.text) == events[1:]
        refused(await user.get(path, params={"after": "x"}), 422)

    with_service(test)


def parsed(stream: str) -> list[dict[str, Any]]:
    """The events of a stream; each one's id must be the one its data tell."""
    found = []
    for block in stream.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if "data" in fields:
            event = json.loads(fields["data"])
            assert (fields["id"], fields["event"]) == (event["id"], event["type"])
            found.append(event)
    return found


def test_a_redis_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.service.routes.health.READY_WITHIN_S", 0.05)

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until.wait()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        redis = Redis(port=server.sockets[0].getsockname()[1])  # without a limit of its own
        settings = Settings(folder="/nowhere", store="memory://hanging")
        transport = httpx.ASGITransport(create_app(Parts(redis, settings)))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            assert (await client.get("/readyz")).status_code == 503
        until.set()
        await redis.aclose()
        server.close()
        await server.wait_closed()

    until = asyncio.Event()
    asyncio.run(main())


def test_the_document_describes_the_body_of_a_job() -> None:
    document = Service().app.openapi()
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    schemas = document["components"]["schemas"]
    assert body["schema"]["$ref"] == "#/components/schemas/JobSpec"
    assert schemas["JobSpec"]["required"] == ["model", "dataset", "rewards"]
    refs = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))
    assert {ref.removeprefix("#/components/schemas/") for ref in refs} <= schemas.keys()


def test_health_needs_no_key_and_readiness_needs_redis() -> None:
    async def test(service: Service) -> None:
        assert (await service.client.get("/healthz")).text == "ok\n"
        assert (await service.client.get("/readyz")).text == "ready\n"
        user = await service.user("acme", "read")
        service.server.connected = False
        assert (await service.client.get("/healthz")).status_code == 200
        assert (await service.client.get("/readyz")).status_code == 503
        away = refused(await user.get("/v1/jobs"), 503)
        assert away["category"] == "transient"
        assert away["detail"] == "the job store cannot be reached"  # and not where it is

    with_service(test)


def test_a_defect_of_ours_is_told_without_its_details() -> None:
    async def test(service: Service) -> None:
        user = await service.user("acme", "read")
        await service.redis.set(f"rlhfless:{{{NO_JOB}}}:record", b"not JSON")
        problem = refused(await user.get(f"/v1/jobs/{NO_JOB}"), 500)
        assert problem["category"] == "internal"
        assert "JSON" not in problem["detail"]

    with_service(test)
