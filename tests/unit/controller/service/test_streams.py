"""Streams of a replica that is told to end, or that Redis does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from rlhfless.errors import TransientError
from tests.support.service_api import SPEC, Api, with_api

STREAM = {"Accept": "text/event-stream"}


@pytest.mark.parametrize("what", ["events", "logs"])
def test_a_replica_that_ends_ends_its_streams(what: str) -> None:
    """So that they go on at another at once, and nothing has to be cut off."""

    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        job = (await user.post("/v1/jobs", json=SPEC)).json()["id"]
        api.service.closing = True
        told = await user.get(f"/v1/jobs/{job}/{what}", headers=STREAM)
        assert told.status_code == 200

    with_api(test)


def test_a_stream_that_redis_does_not_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no defect of ours; its reader comes back."""

    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        job = (await user.post("/v1/jobs", json=SPEC)).json()["id"]
        registry = api.service.registry
        found, get = [], registry.get

        async def once(tenant: str, job: str) -> Any:
            if found:
                raise TransientError("the job store cannot be reached")
            found.append(await get(tenant, job))
            return found[0]

        monkeypatch.setattr(registry, "get", once)
        told = await user.get(f"/v1/jobs/{job}/events", headers=STREAM)
        assert (told.status_code, told.text) == (200, "retry: 1000\n\n")

    with_api(test)
