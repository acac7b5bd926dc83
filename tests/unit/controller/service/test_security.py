"""Every route that the API documents, also those that are added later, against who must not use it.

A new name of a path parameter needs an entry in ``THINGS``: how to make one, and what none is."""

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from controller.service.app import ROUTES
from tests.support.service_api import (
    MAX_BODY,
    MAX_FILE,
    SPEC,
    Api,
    Route,
    documented_routes,
    refused,
    with_api,
)

ALL = documented_routes()
OPEN = {"/healthz", "/readyz", "/metrics"}
"""What needs no key."""
KEYED = [route for route in ALL if route.template not in OPEN]
NAMED = [route for route in KEYED if route.params]
FREE_TO_READ = {"POST /v1/estimates"}
"""Change nothing though they are no GET."""
TRAVERSALS = (
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "%2e%2e",
    "..%5c..%5cetc",
    "%2fetc%2fpasswd",
    "file:%2f%2f%2fetc%2fpasswd",
    "%00",
    "x%00.jsonl",
    "x%0aSET%20y",
    "*",
    "x" * 3000,
    "%f0%9f%92%a9",
    "%ff",
)


async def make_job(owner: httpx.AsyncClient) -> str:
    return str((await owner.post("/v1/jobs", json=SPEC)).json()["id"])


async def make_file(owner: httpx.AsyncClient) -> str:
    files = {"file": ("data.jsonl", b'{"prompt": "x"}\n')}
    made = await owner.post("/v1/files", files=files, data={"purpose": "dataset"})
    return str(made.json()["id"])


async def make_key(owner: httpx.AsyncClient) -> str:
    made = await owner.post("/v1/keys", json={"name": "made", "scope": "read"})
    return str(made.json()["id"])


async def one(_: httpx.AsyncClient) -> str:
    return "1"


THINGS: dict[str, tuple[Callable[[httpx.AsyncClient], Awaitable[str]], str]] = {
    "job": (make_job, "job-" + "0" * 28),
    "file": (make_file, "file-" + "0" * 24),
    "key_id": (make_key, "0" * 16),
    "step": (one, "1"),
    "name": (one, "1"),
}


def nothing(route: Route) -> str:
    """The route's path with ids of nothing."""
    return route.template.format(**{name: THINGS[name][1] for name in route.params})


async def owned(route: Route, owner: httpx.AsyncClient) -> dict[str, str]:
    """Something of the owner's for each parameter."""
    return {name: await THINGS[name][0](owner) for name in route.params}


def each(routes: list[Route]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("route", routes, ids=str)


def test_nothing_of_the_api_is_left_out_of_its_document() -> None:
    api = Api()
    documented = {(route.method, route.template) for route in ALL}
    for make in ROUTES:
        for route in make(api.service).routes:
            path = getattr(route, "path", "")
            if path.startswith("/v1") or path in OPEN:
                for method in getattr(route, "methods", ()) - {"HEAD"}:
                    assert (method, re.sub(r":\w+}", "}", path)) in documented
    secured = {route.template for route in ALL if "security" in route.operation}
    assert secured == {route.template for route in KEYED}
    assert all(route.template.startswith("/v1/") for route in KEYED)
    assert {name for route in ALL for name in route.params} <= THINGS.keys()


@each(KEYED)
def test_without_a_valid_key_there_is_nothing(route: Route, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user("acme", "admin")
        text = user.headers["Authorization"].removeprefix("Bearer ")
        revoked, revoked_text = await api.service.keys.create("acme", "old", "admin")
        await api.service.keys.revoke("acme", revoked.id)
        wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
        bad = ["", "Bearer", "Bearer x", f"Bearer {wrong}", f"Bearer {revoked_text}"]
        bad += [text, f"Basic {text}", f"Bearer {text} {text}", "Bearer rlk_é"]
        for authorization in bad:
            headers = {b"Authorization": authorization.encode()} if authorization else {}
            response = await api.nobody.request(route.method, nothing(route), headers=headers)
            refused(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
            assert text not in response.text

    with_api(test, tmp_path)


@each(KEYED)
def test_a_body_is_not_read_for_nobody(route: Route, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        taken = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal taken
            while taken < 10 * MAX_FILE:
                taken += 1000
                yield b"x" * 1000

        headers = {"Content-Type": "application/json"}
        response = await api.nobody.request(
            route.method, nothing(route), content=endless(), headers=headers
        )
        refused(response, 401)
        assert taken == 0

    with_api(test, tmp_path)


@each([route for route in KEYED if route.changes and str(route) not in FREE_TO_READ])
def test_who_may_only_read_changes_nothing(route: Route, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        owner, reader = await api.user("acme", "admin"), await api.user("acme", "read")
        path = route.template.format(**await owned(route, owner))
        assert (
            "this needs the scope"
            in refused(await reader.request(route.method, path), 403)["detail"]
        )

    with_api(test, tmp_path)


@each([route for route in KEYED if route.template.startswith(("/v1/keys", "/v1/audit"))])
def test_keys_and_the_audit_log_are_for_administrators(route: Route, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        problem = refused(await user.request(route.method, nothing(route)), 403)
        assert "scope admin" in problem["detail"]

    with_api(test, tmp_path)


@each(NAMED)
def test_what_is_anothers_is_as_if_it_were_not_there(route: Route, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        owner, other = await api.user("acme", "admin"), await api.user("rival", "admin")
        ids = await owned(route, owner)
        theirs = await other.request(route.method, route.template.format(**ids))
        nobodys = await other.request(route.method, nothing(route))
        words = str(refused(theirs, 404))
        for name, id_ in ids.items():
            words = words.replace(id_, THINGS[name][1])
        assert words == str(refused(nobodys, 404))
        stream = {"Accept": "text/event-stream"}
        refused(
            await other.request(route.method, route.template.format(**ids), headers=stream), 404
        )

    with_api(test, tmp_path)


@each([route for route in KEYED if route.changes])
def test_no_body_is_larger_than_it_may_be(route: Route, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        owner = await api.user("acme", "admin")
        path = route.template.format(**await owned(route, owner))
        most = MAX_BODY + (MAX_FILE if path == "/v1/files" else 0)
        headers = {"Content-Type": "application/json"}
        told = await owner.request(route.method, path, content=b"x" * (most + 1), headers=headers)
        refused(told, 413)

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(most // 100 + 1):
                yield b" " * 100

        untold = await owner.request(route.method, path, content=chunks(), headers=headers)
        if route.reads_body:
            refused(untold, 413)
        else:
            assert untold.status_code in (200, 404, 409)

    with_api(test, tmp_path)


@each([route for route in KEYED if route.reads_body])
@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[1]", b"NaN", b'{"nothing": 1}', b'"x"'])
def test_a_malformed_body_is_refused(route: Route, body: bytes, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        owner = await api.user("acme", "admin")
        path = route.template.format(**await owned(route, owner))
        headers = {"Content-Type": "application/json"}
        response = await owner.request(route.method, path, content=body, headers=headers)
        assert refused(response, 422)["category"] == "user"

    with_api(test, tmp_path)


@each(NAMED)
def test_no_name_leads_out_of_where_it_belongs(route: Route, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        owner = await api.user("acme", "admin")
        ids = await owned(route, owner)
        for name in route.params:
            for evil in TRAVERSALS:
                path = route.template.format(**{**ids, name: evil})
                response = await owner.request(route.method, path, json={})
                assert response.status_code in (404, 405, 409, 422), (path, response.text)
                assert response.headers["content-type"] == "application/problem+json"
                assert "root:" not in response.text

    with_api(test, tmp_path)


def test_no_secret_is_in_a_log_the_audit_log_or_an_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets: list[str] = []

    async def test(api: Api) -> None:
        owner = await api.user("acme", "admin")
        valid = owner.headers["Authorization"].removeprefix("Bearer ")
        made = (await owner.post("/v1/keys", json={"name": "made", "scope": "read"})).json()["key"]
        secrets.extend((valid, made, f"rlk_{'a' * 16}_{'b' * 64}"))
        headers = {"Idempotency-Key": "once"}
        for _ in range(2):
            new = {"name": "again", "scope": "read"}
            kept = await owner.post("/v1/keys", json=new, headers=headers)
            if kept.status_code == 201:
                secrets.append(kept.json()["key"])
        assert "secret" in refused(kept, 409)["detail"]
        told = {"secret": "webhook-key-5f1e"}, {"api_key": "tracker-key-77ab"}
        hooks = [{"url": "http://user:hook-pass-31c9@reward/x", **told[0]}]
        job = {**SPEC, "webhooks": hooks, "integrations": [{"type": "wandb", **told[1]}]}
        submitted = await owner.post("/v1/jobs", json=job)
        assert submitted.status_code == 201, submitted.text
        await owner.post("/v1/jobs", json={**job, "webhooks": [{**hooks[0], "url": "ftp://x"}]})
        hidden = ["webhook-key-5f1e", "tracker-key-77ab", "hook-pass-31c9"]
        assert [text for text in hidden if text in submitted.text] == []
        for route in KEYED:
            ids = await owned(route, owner)
            for secret in secrets:
                path = route.template.format(**ids)
                await api.with_key(secret).request(route.method, path, params={"after": secret})
                if route.params:
                    path = route.template.format(**dict.fromkeys(ids, secret))
                    await owner.request(route.method, path, json={"name": secret})
            api.forget_attempts()
        ours = [record for record in caplog.records if not record.name.startswith("http")]
        said = [record.getMessage() for record in ours]  # the test's own client logs URLs
        assert any('"route": "/v1/jobs/{job}"' in line for line in said)
        for key in await api.redis.keys("*"):
            kind = await api.redis.type(key)
            if kind == b"stream":
                said += [str(fields) for _, fields in await api.redis.xrange(key)]
            elif kind == b"string" and not key.endswith(b":secrets"):  # kept there, nowhere else
                said.append(str(await api.redis.get(key)))
        assert any("GET /v1/jobs/{job}" in text for text in said)
        for secret in [secret.rpartition("_")[2] for secret in secrets] + hidden:
            assert [text for text in said if secret in text] == []
        metrics = (await api.nobody.get("/metrics")).text
        assert "acme" not in metrics
        assert "rlk_" not in metrics

    with_api(test, tmp_path)
