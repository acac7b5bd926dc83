"""The client of the Kubernetes API: what it bears with, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from controller.platforms import kube
from controller.platforms.kube import MANAGER, PODS, SERVICES, Kube, Object
from rlhfless.errors import (
    CapacityError,
    ForbiddenError,
    RlhflessError,
    TransientError,
    UserError,
)
from tests.support.knative_platforms import client_configuration
from tests.support.kube_api import ApiError, KubeApi

NAMESPACE = "default"
KEY = ("apis/serving.knative.dev/v1", "services", NAMESPACE)
LABELS = {"app": "a"}
BUSY = ApiError(429, "TooManyRequests", "slow down", retry_after_s=0)
AWAY = ApiError(503, "ServiceUnavailable", "etcd has no leader")


@contextlib.asynccontextmanager
async def connected() -> AsyncGenerator[tuple[KubeApi, Kube], None]:
    async with KubeApi().serving() as api, Kube(client_configuration(api)) as client:
        yield api, client


def service(name: str = "a", **spec: Any) -> Object:
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": LABELS},
        "spec": spec,
    }


def test_apply_makes_then_changes_and_drops_what_is_not_given_any_more() -> None:
    async def run() -> None:
        async with connected() as (api, client):
            await client.apply(SERVICES, service(one=1, two=2), NAMESPACE)
            api.store.set_status(KEY, "a", {"url": "http://a"})
            found = await client.apply(SERVICES, service(one=3), NAMESPACE)
            assert found["spec"] == {"one": 3}
            assert found["status"] == {"url": "http://a"}
            assert found["metadata"]["generation"] == 2

    asyncio.run(run())


def test_applying_the_same_again_changes_nothing() -> None:
    async def run() -> None:
        async with connected() as (_, client):
            first = await client.apply(SERVICES, service(one=1), NAMESPACE)
            assert await client.apply(SERVICES, service(one=1), NAMESPACE) == first

    asyncio.run(run())


def test_apply_takes_fields_from_others_and_leaves_them_theirs() -> None:
    async def run() -> None:
        async with connected() as (api, client):
            api.store.apply(KEY, "a", service(one=1, theirs=1), "kubectl", force=False)
            with pytest.raises(ApiError, match="conflicts"):
                api.store.apply(KEY, "a", service(one=2), MANAGER, force=False)
            found = await client.apply(SERVICES, service(one=2), NAMESPACE)
            assert found["spec"] == {"one": 2, "theirs": 1}

    asyncio.run(run())


def test_who_gives_its_fields_up_takes_only_its_own() -> None:
    async def run() -> None:
        async with connected() as (api, client):
            both = {**service(one=1), "metadata": {"name": "a", "annotations": {"first": "x"}}}
            await client.apply(SERVICES, both, NAMESPACE, "first")
            both["metadata"]["annotations"] = {"second": "y"}
            read = await client.apply(SERVICES, both, NAMESPACE, "second")
            api.store.set_status(KEY, "a", {"url": "http://a"})
            assert not await client.relinquish(SERVICES, read, "first")  # it has changed since
            now = await client.get(SERVICES, "a", NAMESPACE)
            assert now is not None
            assert await client.relinquish(SERVICES, now, "first")
            left = api.store.get(KEY, "a")
            assert left["metadata"]["annotations"] == {"second": "y"}
            assert left["spec"] == {"one": 1}
            api.store.delete(KEY, "a", {})
            assert not await client.relinquish(SERVICES, left, "second")
            assert api.store.all(KEY) == []

    asyncio.run(run())


def test_one_of_several_values_is_selected() -> None:
    async def run() -> None:
        async with connected() as (_, client):
            for name in ("a", "b", "c"):
                labelled = {**service(), "metadata": {"name": name, "labels": {"app": name}}}
                await client.apply(SERVICES, labelled, NAMESPACE)
            found, _ = await client.list(SERVICES, NAMESPACE, {"app": ["a", "c"]})
            assert [item["metadata"]["name"] for item in found] == ["a", "c"]

    asyncio.run(run())


def test_delete_spares_what_has_changed_and_forgives_what_is_gone() -> None:
    async def run() -> None:
        async with connected() as (_, client):
            old = await client.apply(SERVICES, service(one=1), NAMESPACE)
            new = await client.apply(SERVICES, service(one=2), NAMESPACE)
            assert not await client.delete(SERVICES, old)
            assert await client.delete(SERVICES, new)
            assert await client.delete(SERVICES, new)
            assert await client.get(SERVICES, "a", NAMESPACE) is None

    asyncio.run(run())


def test_lists_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "_PAGE", 2)

    async def run() -> None:
        async with connected() as (api, client):
            for n in range(5):
                await client.apply(SERVICES, service(f"s{n}"), NAMESPACE)
            other = service("other")
            other["metadata"]["labels"] = {"app": "b"}
            await client.apply(SERVICES, other, NAMESPACE)
            found, version = await client.list(SERVICES, NAMESPACE, LABELS)
            assert [item["metadata"]["name"] for item in found] == [f"s{n}" for n in range(5)]
            assert version == str(api.store.latest)

    asyncio.run(run())


@pytest.mark.parametrize("error", [BUSY, AWAY, ApiError(409, "Conflict", "modified")])
def test_what_passes_is_tried_again(error: ApiError) -> None:
    async def run() -> None:
        async with connected() as (api, client):
            api.fail_next(error, error)
            await client.apply(SERVICES, service(), NAMESPACE)

    asyncio.run(run())


def test_an_api_server_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "PATIENCE_S", 0.05)

    async def run() -> None:
        async with connected() as (api, client):
            api.fail_next(*[AWAY] * 5)
            with pytest.raises(TransientError, match="etcd has no leader"):
                await client.apply(SERVICES, service(), NAMESPACE)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("refusal", "family"),
    [
        (ApiError(403, "Forbidden", "exceeded quota: gpus, limited: 4"), CapacityError),
        (ApiError(403, "Forbidden", "services is forbidden"), ForbiddenError),
        (ApiError(422, "Invalid", "spec.x: unknown field"), UserError),
        (ApiError(404, "NotFound", "the server could not find the requested resource"), UserError),
    ],
)
def test_what_stays_is_told(refusal: ApiError, family: type[RlhflessError]) -> None:
    async def run() -> None:
        async with connected() as (api, client):
            api.fail_next(refusal)
            with pytest.raises(family, match="Kubernetes refused to apply services a"):
                await client.apply(SERVICES, service(), NAMESPACE)

    asyncio.run(run())


def test_a_wrong_token_is_told() -> None:
    async def run() -> None:
        async with connected() as (api, client):
            api.token = "another"
            with pytest.raises(ForbiddenError):
                await client.list(PODS, NAMESPACE)

    asyncio.run(run())


class Following:
    """What ``follow`` tells of Services, by their names."""

    def __init__(self, client: Kube) -> None:
        self.snapshots = client.follow(SERVICES, NAMESPACE, LABELS)

    async def until(self, *names: str) -> dict[str, Object]:
        async with asyncio.timeout(10):
            async for found in self.snapshots:
                if sorted(found) == sorted(names):
                    return found
        raise AssertionError


def test_following_sees_changes_and_only_what_has_the_labels() -> None:
    async def run() -> None:
        async with connected() as (api, client):
            following = Following(client)
            await following.until()
            await client.apply(SERVICES, service("a"), NAMESPACE)
            await following.until("a")
            api.store.set_status(KEY, "a", {"url": "http://a"})
            assert (await following.until("a"))["a"]["status"] == {"url": "http://a"}
            moved = service("a")
            moved["metadata"]["labels"] = {"app": "b"}
            await client.apply(SERVICES, moved, NAMESPACE)
            await following.until()
            await following.snapshots.aclose()

    asyncio.run(run())


def test_a_broken_watch_goes_on_where_it_was() -> None:
    async def run() -> None:
        async with connected() as (api, client):
            following = Following(client)
            await following.until()
            await client.apply(SERVICES, service("a"), NAMESPACE)
            await following.until("a")
            for name in ("b", "c"):
                api.drop_watches()
                await client.apply(SERVICES, service(name), NAMESPACE)
            await following.until("a", "b", "c")
            await following.snapshots.aclose()
            assert api.requests.count(("list", "services")) == 1
            assert api.requests.count(("watch", "services")) > 1

    asyncio.run(run())


def test_a_version_that_has_expired_leads_to_a_new_list() -> None:
    async def run() -> None:
        async with connected() as (api, client):
            await client.apply(SERVICES, service("a"), NAMESPACE)
            following = Following(client)
            await following.until("a")
            await client.apply(SERVICES, service("b"), NAMESPACE)
            await client.delete(SERVICES, await client.apply(SERVICES, service("a"), NAMESPACE))
            api.store.compact()  # before it watches: nobody tells of the deletion
            await following.until("b")
            await following.snapshots.aclose()

    asyncio.run(run())


def test_following_bears_refusals_and_tells_those_that_stay() -> None:
    async def run() -> None:
        async with connected() as (api, client):
            following = Following(client)
            await following.until()
            api.fail_next(BUSY, AWAY, ApiError(410, "Expired", "too old"), verb="watch")
            await client.apply(SERVICES, service("a"), NAMESPACE)
            await following.until("a")
            api.denied.add(("watch", "services"))
            api.drop_watches()
            with pytest.raises(ForbiddenError):
                await following.until("never")

    asyncio.run(run())
