"""What is done for every request: ids, logs, audit entries, numbers, bounds."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from controller.service.audit import MAX_TARGET_CHARS, Audit, AuditEntry, is_audited, masked
from controller.service.body_limit import BodyLimit, BodyTooSlow
from controller.service.edge import Edge
from controller.service.guard import BURST
from controller.service.metrics import ServiceMetrics
from tests.support.service_api import SPEC, Api, refused, with_api


async def entries(api: Api, tenant: str | None) -> list[AuditEntry]:
    return (await api.service.audit.read(tenant, None, 100)).data


def test_an_answer_has_a_request_id_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "controller.service.access")

    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        made = await user.post("/v1/jobs", json=SPEC, headers={"X-Request-Id": "my-request.1"})
        job = made.json()["id"]
        await user.get(f"/v1/jobs/{job}", params={"token": "hidden"})
        odd = await user.get("/v1/nothing", headers={"X-Request-Id": "a\tb" * 40})
        lines = [
            json.loads(record.getMessage())
            for record in caplog.records
            if record.name == "controller.service.access"
        ]
        first, second, third = lines
        assert made.headers["x-request-id"] == first["request"] == "my-request.1"
        assert odd.headers["x-request-id"] == third["request"]
        assert len(third["request"]) == 32
        assert (first["method"], first["route"], first["status"]) == ("POST", "/v1/jobs", 201)
        assert first["tenant"] == "acme"
        assert first["bytes"] == len(made.content)
        assert (second["route"], second["path"]) == ("/v1/jobs/{job}", f"/v1/jobs/{job}")
        assert (third["route"], third["status"]) == ("none", 404)
        assert "hidden" not in str(lines)

    with_api(test)


def test_changes_and_refusals_are_audited_and_looking_is_not() -> None:
    async def test(api: Api) -> None:
        owner, other = await api.user("acme", "submit"), await api.user("rival", "read")
        job = (await owner.post("/v1/jobs", json=SPEC)).json()["id"]
        await owner.get(f"/v1/jobs/{job}")
        await other.get(f"/v1/jobs/{job}")
        await other.post(f"/v1/jobs/{job}/cancel")
        await api.nobody.get("/v1/jobs")
        await api.nobody.get("/v1/nothing")
        await api.nobody.get("/healthz")
        assert [(e.action, e.status) for e in await entries(api, "acme")] == [
            ("POST /v1/jobs", 201)
        ]
        theirs = await entries(api, "rival")
        assert [(e.action, e.target, e.status) for e in theirs] == [
            ("POST /v1/jobs/{job}/cancel", f"/v1/jobs/{job}/cancel", 403),
            ("GET /v1/jobs/{job}", f"/v1/jobs/{job}", 404),
        ]
        assert len({e.key for e in theirs}) == 1
        assert [(e.action, e.status, e.key) for e in await entries(api, None)] == [
            ("GET /v1/jobs", 401, None)
        ]

    with_api(test)


def test_the_audit_log_comes_in_pages_for_its_own_tenant() -> None:
    async def test(api: Api) -> None:
        admin, other = await api.user("acme", "admin"), await api.user("rival", "admin")
        for number in range(5):
            answer = await admin.post("/v1/keys", json={"name": f"k{number}", "scope": "read"})
            assert answer.status_code == 201
        seen: list[dict[str, Any]] = []
        more = True
        while more:
            params: dict[str, Any] = {"limit": 2} | ({"after": seen[-1]["id"]} if seen else {})
            page = (await admin.get("/v1/audit", params=params)).json()
            seen += page["data"]
            more = page["has_more"]
        assert [entry["action"] for entry in seen] == ["POST /v1/keys"] * 5
        assert [entry["id"] for entry in seen] == sorted((e["id"] for e in seen), reverse=True)
        assert {entry["tenant"] for entry in seen} == {"acme"}
        assert (await other.get("/v1/audit")).json()["data"] == []
        refused(await admin.get("/v1/audit", params={"after": "x"}), 422)

    with_api(test)


def test_an_audit_entry_that_cannot_be_written_is_told_and_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(self: Audit, entry: AuditEntry) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Audit, "write", never)
    monkeypatch.setattr("controller.service.edge.AUDIT_TIMEOUT_S", 0.01)

    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        assert (await user.post("/v1/jobs", json=SPEC)).status_code == 201
        assert "the audit log lost" in caplog.text
        assert "rlhfless_audit_entries_lost_total 1.0" in (await api.nobody.get("/metrics")).text

    with_api(test)


def test_without_redis_a_refusal_is_still_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def test(api: Api) -> None:
        api.server.connected = False
        refused(await api.nobody.get("/v1/jobs"), 503)
        assert (await api.nobody.get("/metrics")).status_code == 200

    with_api(test)


def test_a_defect_is_answered_with_its_request_id_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(api: Api) -> None:
        async def broken(*_: Any) -> None:
            raise ZeroDivisionError("what went wrong")

        api.service.registry.listed = broken  # type: ignore[method-assign, assignment]
        answer = await (await api.user("acme", "read")).get("/v1/jobs")
        problem = refused(answer, 500)
        assert problem["category"] == "internal"
        assert answer.headers["x-request-id"] in problem["hint"]
        assert "what went wrong" not in answer.text
        assert "what went wrong" in caplog.text
        assert answer.headers["x-request-id"] in caplog.text

    with_api(test)


def test_a_caller_who_leaves_amid_a_body_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def test(api: Api) -> None:
        async def leaving(scope: Scope, receive: Receive, send: Send) -> None:
            await Request(scope, receive).body()

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            raise AssertionError(message)

        edge = Edge(leaving, api.service.audit, api.service.metrics, BodyLimit(10))
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        with caplog.at_level(logging.INFO, "controller.service.access"):
            await edge(scope, receive, send)
        (line,) = (json.loads(record.message) for record in caplog.records)
        assert line["status"] == 499

    with_api(test)


def test_requests_are_counted_by_route() -> None:
    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        job = (await user.post("/v1/jobs", json=SPEC)).json()["id"]
        for _ in range(3):
            await user.get(f"/v1/jobs/{job}")
        await api.nobody.request("BREW", "/coffee")
        text = (await api.nobody.get("/metrics")).text
        counted = 'method="GET",route="/v1/jobs/{job}",status="200"} 3.0'
        assert f"rlhfless_http_requests_total{{{counted}" in text
        assert (
            'rlhfless_http_request_seconds_count{method="GET",route="/v1/jobs/{job}"} 3.0' in text
        )
        assert 'method="other",route="none",status="404"' in text
        assert job not in text

    with_api(test)


def test_the_drivers_numbers() -> None:
    metrics = ServiceMetrics()
    metrics.set_jobs({"running": 2, "queued": 1})
    metrics.set_jobs({"running": 1})
    metrics.set_instances({("rollout", "busy"): 3, ("reward", "idle"): 1})
    metrics.set_instances({("rollout", "busy"): 2})
    metrics.set_driven(1)
    metrics.waited(7.0)
    metrics.lease_lost()
    metrics.job_retried()
    metrics.job_ended("failed")
    metrics.booked(2.5)
    metrics.booked(2.5)
    with metrics.estimate(), metrics.event_stream():
        text = metrics.text().decode()
    for line in (
        'rlhfless_jobs{state="running"} 1.0',
        'rlhfless_jobs{state="queued"} 0.0',
        'rlhfless_instances{function="rollout",state="busy"} 2.0',
        "rlhfless_jobs_driven 1.0",
        'rlhfless_queue_wait_seconds_bucket{le="15.0"} 1.0',
        "rlhfless_lease_losses_total 1.0",
        "rlhfless_job_retries_total 1.0",
        'rlhfless_jobs_ended_total{state="failed"} 1.0',
        "rlhfless_function_seconds_total 5.0",
        "rlhfless_estimates_running 1.0",
        "rlhfless_event_streams_open 1.0",
    ):
        assert line in text.splitlines(), line
    assert 'function="reward"' not in text


def test_bad_keys_are_slowed_down_and_good_ones_are_not() -> None:
    async def test(api: Api) -> None:
        user = await api.user("acme", "read")
        assert (await user.get("/v1/jobs")).status_code == 200
        bad = api.with_key("rlk_" + "0" * 16 + "_" + "0" * 64)
        for _ in range(BURST):
            refused(await bad.get("/v1/jobs"), 401)
        answer = await bad.get("/v1/jobs")
        assert refused(answer, 429)["category"] == "capacity"
        assert int(answer.headers["retry-after"]) >= 1
        assert len(await entries(api, None)) == BURST
        assert (await user.get("/v1/jobs")).status_code == 200

    with_api(test)


@pytest.mark.parametrize(
    ("method", "status", "known", "audited"),
    [
        ("GET", 200, True, False),
        ("GET", 404, True, True),
        ("GET", 404, False, False),
        ("GET", 403, True, True),
        ("GET", 401, False, True),
        ("GET", 429, False, False),
        ("POST", 201, True, True),
        ("POST", 422, True, True),
        ("POST", 405, False, False),
        ("DELETE", 503, True, True),
        ("HEAD", 200, True, False),
    ],
)
def test_what_is_audited(method: str, status: int, known: bool, audited: bool) -> None:
    assert is_audited(method, status, known) is audited


def test_a_path_is_kept_without_keys_and_not_without_end() -> None:
    assert masked("/v1/keys/rlk_ab_cd/x") == "/v1/keys/rlk_***/x"
    assert masked("/v1/keys/RLK_ab_cd") == "/v1/keys/rlk_***"
    assert len(masked("/" + "x" * 1000)) == MAX_TARGET_CHARS


def test_a_stream_is_passed_on_as_it_comes() -> None:
    """Each message reaches the caller before the app goes on to the next."""
    order: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in (b"a", b"b"):
            order.append(f"said {part.decode()}")
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def test(api: Api) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            if message.get("body"):
                order.append(f"got {message['body'].decode()}")

        edge = Edge(app, api.service.audit, api.service.metrics, BodyLimit(10))
        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        await edge(scope, receive, send)
        assert order == ["said a", "got a", "said b", "got b"]

    with_api(test)


def test_a_body_is_bounded_per_path() -> None:
    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(200):
                yield b"x" * 100

        refused(await user.post("/v1/jobs", content=chunks()), 413)
        headers = {"Content-Type": "text/plain"}
        refused(await user.post("/v1/files", content=chunks(), headers=headers), 422)

    with_api(test)


def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["more_body"]
        with pytest.raises(BodyTooSlow):
            await receive()
        done.append("slow")

    done: list[str] = []
    messages = [{"type": "http.request", "body": b"x", "more_body": True}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def main() -> None:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        await BodyLimit(10, idle_s=0.01)(app, scope, receive, no_send)

    async def no_send(_: Message) -> None:
        raise AssertionError

    asyncio.run(main())
    assert done == ["slow"]


def test_the_documentation_needs_nothing_from_elsewhere() -> None:
    async def test(api: Api) -> None:
        page = await api.nobody.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "http" not in page.text
        for name in ("start.js", "swagger-ui.css", "swagger-ui-bundle.js"):
            assert f'"/docs/{name}"' in page.text
            assert (await api.nobody.get(f"/docs/{name}")).status_code == 200
        refused(await api.nobody.get("/docs/..%2fcore.py"), 404)
        refused(await api.nobody.get("/docs/redoc.standalone.js"), 404)
        refused(await api.nobody.get("/redoc"), 404)
        document = (await api.nobody.get("/openapi.json")).json()
        assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
        submit = document["paths"]["/v1/jobs"]["post"]
        assert submit["security"] == [{"key": []}]
        for status in ("401", "403", "409", "413", "422", "503", "default"):
            content = submit["responses"][status]["content"]
            assert list(content) == ["application/problem+json"]

    with_api(test)
