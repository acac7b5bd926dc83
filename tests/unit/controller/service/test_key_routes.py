"""Keys, the tenant and its limits over REST, and idempotency keys of the routes that change."""

from typing import Any

import pytest

from controller.ledger import Usage
from tests.support.service_api import SPEC, Api, refused, with_api

NEW = {"name": "laptop", "scope": "submit"}


def test_a_key_is_made_shown_once_used_and_revoked() -> None:
    async def test(api: Api) -> None:
        admin = await api.user("acme", "admin")
        made = await admin.post("/v1/keys", json=NEW)
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        key = made.json()
        assert made.headers["location"] == f"/v1/keys/{key['id']}"
        assert (key["tenant"], key["name"], key["scope"]) == ("acme", "laptop", "submit")
        user = api.with_key(key["key"])
        assert (await user.get("/v1/jobs")).status_code == 200
        listed = (await admin.get("/v1/keys")).json()["data"]
        assert [one["name"] for one in listed] == ["laptop", "test"]
        assert all(one["key"] is None for one in listed)
        revoked = await admin.delete(f"/v1/keys/{key['id']}")
        assert revoked.json()["revoked_at"] is not None
        refused(await user.get("/v1/jobs"), 401)
        again = await admin.delete(f"/v1/keys/{key['id']}")
        assert again.json() == revoked.json()

    with_api(test)


def test_the_last_administrator_stays() -> None:
    async def test(api: Api) -> None:
        admin = await api.user("acme", "admin")
        own = (await admin.get("/v1/keys")).json()["data"][0]["id"]
        assert refused(await admin.delete(f"/v1/keys/{own}"), 409)["hint"]
        await admin.post("/v1/keys", json={"name": "second", "scope": "admin"})
        assert (await admin.delete(f"/v1/keys/{own}")).status_code == 200

    with_api(test)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "x"}, "scope"),
        ({"name": "x", "scope": "root"}, "scope"),
        ({"name": "", "scope": "read"}, "name"),
        ({"name": "a\nb", "scope": "read"}, "name"),
        ({"name": "x", "scope": "read", "tenant": "rival"}, "tenant"),
    ],
)
def test_a_key_that_cannot_be_is_refused(body: dict[str, Any], param: str) -> None:
    async def test(api: Api) -> None:
        admin = await api.user("acme", "admin")
        assert refused(await admin.post("/v1/keys", json=body), 422)["param"] == param
        assert len(await api.service.keys.listed()) == 1

    with_api(test)


def test_there_are_not_keys_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.service.routes.keys.MAX_KEYS", 2)

    async def test(api: Api) -> None:
        admin = await api.user("acme", "admin")
        assert (await admin.post("/v1/keys", json=NEW)).status_code == 201
        refused(await admin.post("/v1/keys", json=NEW), 409)

    with_api(test)


def test_keys_come_in_pages() -> None:
    async def test(api: Api) -> None:
        admin = await api.user("acme", "admin")
        for _ in range(4):
            await admin.post("/v1/keys", json=NEW)
        first = (await admin.get("/v1/keys", params={"limit": 3})).json()
        assert first["has_more"]
        after = {"limit": 3, "after": first["data"][-1]["id"]}
        rest = (await admin.get("/v1/keys", params=after)).json()
        assert not rest["has_more"]
        assert len({one["id"] for one in first["data"] + rest["data"]}) == 5
        refused(await admin.get("/v1/keys", params={"after": "nobody's"}), 404)

    with_api(test)


def test_a_repeated_creation_makes_no_second_key_and_tells_no_secret() -> None:
    async def test(api: Api) -> None:
        admin = await api.user("acme", "admin")
        headers = {"Idempotency-Key": "once"}
        made = (await admin.post("/v1/keys", json=NEW, headers=headers)).json()
        problem = refused(await admin.post("/v1/keys", json=NEW, headers=headers), 409)
        assert made["id"] in problem["hint"]
        assert made["key"] not in str(problem)
        other = {**NEW, "scope": "read"}
        assert (
            "another"
            in refused(await admin.post("/v1/keys", json=other, headers=headers), 409)["detail"]
        )
        assert len(await api.service.keys.listed("acme")) == 2

    with_api(test)


def test_a_tenant_sees_its_limits_and_what_it_used() -> None:
    async def test(api: Api) -> None:
        user, other = await api.user("acme", "submit"), await api.user("rival", "read")
        first, second = [(await user.post("/v1/jobs", json=SPEC)).json()["id"] for _ in range(2)]
        await api.service.registry.move("acme", first, "running")
        await api.service.tenants.change("acme", {"max_jobs": 3, "max_usd": 5.0})
        usage = {"rollout": Usage(busy_s=10.0, usd=0.5), "reward": Usage(idle_s=1.0, usd=None)}
        await api.service.tenants.book("acme", second, usage)
        assert (await user.get("/v1/tenant")).json() == {
            "object": "tenant",
            "name": "acme",
            "scope": "submit",
            "quota": {
                "weight": 1.0,
                "max_jobs": 3,
                "max_instances": None,
                "max_function_seconds": None,
                "max_usd": 5.0,
            },
            "running_jobs": 1,
            "instances": 0,
            "function_seconds": 11.0,
            "usd": 0.5,
            "unpriced_seconds": 1.0,
        }
        theirs = (await other.get("/v1/tenant")).json()
        assert (theirs["name"], theirs["running_jobs"], theirs["usd"]) == ("rival", 0, 0.0)

    with_api(test)


@pytest.mark.parametrize("action", ["cancel", "pause"])
def test_a_repeated_action_is_answered_as_the_first_was(action: str) -> None:
    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        job = (await user.post("/v1/jobs", json=SPEC)).json()["id"]
        path, headers = f"/v1/jobs/{job}/{action}", {"Idempotency-Key": "once"}
        first = await user.post(path, headers=headers)
        if action == "pause":
            await user.post(f"/v1/jobs/{job}/resume")
        assert (await user.post(path, headers=headers)).json() == first.json()
        expected = "cancelled" if action == "cancel" else "queued"
        assert (await user.get(f"/v1/jobs/{job}")).json()["state"] == expected
        refused(await user.post(f"/v1/jobs/{job}/resume", headers=headers), 409)

    with_api(test)


def test_a_budget_that_cannot_be_is_refused() -> None:
    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        job = (await user.post("/v1/jobs", json=SPEC)).json()["id"]
        await user.post(f"/v1/jobs/{job}/pause")
        path = f"/v1/jobs/{job}/resume"
        refused(await user.post(path, json={"budget": {"max_usd": -1}}), 422)
        refused(await user.post(path, json={"budgets": {}}), 422)
        resumed = (await user.post(path, json={"budget": {"max_function_seconds": 3}})).json()
        assert resumed["spec"]["budget"]["max_function_seconds"] == 3

    with_api(test)
