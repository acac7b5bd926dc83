"""The two clients: the same methods, one waiting, one awaiting.

with rlhfless.Client() as client:             async with rlhfless.AsyncClient() as client:
    job = client.jobs.submit("j.yaml")            job = await client.jobs.submit("j.yaml")
    for e in client.jobs.events(job):             async for e in client.jobs.events(job):
        print(e.message)                              print(e.message)
    client.jobs.download(job, "model")            await client.jobs.download(job, "model")
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import httpx

import rlhfless
from rlhfless import rest
from rlhfless.client.attach import local_spec, uploaded
from rlhfless.client.connection import Connection, connection
from rlhfless.client.drivers import AsyncDriver, Driver
from rlhfless.client.files import Files
from rlhfless.client.flows import Flow, Items, Request
from rlhfless.client.jobs import Jobs
from rlhfless.client.keys import Keys
from rlhfless.client.methods import Awaiting, Methods, Waiting, answers, yields
from rlhfless.client.methods import Driver as AnyDriver
from rlhfless.client.requests import ask, get, pages, path
from rlhfless.spec import JobSpec

RETRIES = 5
"""About five seconds, with what is waited in between."""
THINKING_S = 600.0
"""A simulation, or a reward that loads a model, takes its time."""


class Service(Methods[AnyDriver]):
    """What is asked of the service as a whole. ``jobs``, ``files``, ``keys``: see there."""

    def __init__(self, driver: AnyDriver) -> None:
        super().__init__(driver)
        self.jobs: Jobs[AnyDriver] = Jobs(driver)
        self.files: Files[AnyDriver] = Files(driver)
        self.keys: Keys[AnyDriver] = Keys(driver)

    @yields
    def models(self) -> Items[rest.Model]:
        """What a job's ``model.path`` may say: of the library, of uploads, of checkpoints."""
        return pages(rest.Model, path("models"))

    @answers
    def estimate(
        self, spec: JobSpec | Mapping[str, Any] | str, *, cluster: str | None = None
    ) -> Flow[rest.Estimate]:
        """What a job would take on a cluster, by simulation. Takes what ``jobs.submit`` takes."""
        body = yield from uploaded(local_spec(spec))
        params = {} if cluster is None else {"cluster": cluster}
        return (yield from ask(rest.Estimate, _thought("estimates", body, params)))

    @answers
    def check_rewards(
        self,
        spec: JobSpec | Mapping[str, Any] | str,
        *,
        rows: int = 4,
        completion: str | None = None,
    ) -> Flow[rest.RewardCheck]:
        """Try a job's rewards on the first ``rows`` of its dataset, with one ``completion`` for all
        or with what the model says."""
        job = yield from uploaded(local_spec(spec))
        body = {"job": job, "rows": rows, "completion": completion}
        return (yield from ask(rest.RewardCheck, _thought("rewards/check", body)))

    @answers
    def tenant(self) -> Flow[rest.Tenant]:
        """Whose key this is, what it may have and has used this month."""
        return get(rest.Tenant, path("tenant"))

    @yields
    def audit(self) -> Items[rest.AuditEntry]:
        """Who did what. Needs a key of the scope admin."""
        return pages(rest.AuditEntry, path("audit"))


def _thought(what: str, body: Any, params: Mapping[str, str] | None = None) -> Request:
    """A question that takes long to answer."""
    return Request(
        method="POST",
        path=f"/v1/{what}",
        params=params or {},
        body=body,
        read_timeout_s=THINKING_S,
    )


class Client(Service[Waiting]):
    """Waits for each answer. May be used by several threads at once.

    ``url``, ``api_key``: by default ``RLHFLESS_URL`` and ``RLHFLESS_API_KEY``
    (``rlhfless.client.connection``). ``retries``: how often a request is sent again after a broken
    connection or a refusal that may be over soon. ``timeout_s``: longest silence of the service,
    where that is shorter than what fits the request. Errors are those of ``rlhfless.errors``.
    ``transport`` and ``sleep`` are for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retries: int = RETRIES,
        timeout_s: float = math.inf,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        to = connection(url, api_key)
        self._http = httpx.Client(**_settings(to), transport=transport)
        self.url = to.url
        super().__init__(Driver(self._http, retries, timeout_s, sleep))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(Service[Awaiting]):
    """As ``Client``, awaited. Of one event loop."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retries: int = RETRIES,
        timeout_s: float = math.inf,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        to = connection(url, api_key)
        self._http = httpx.AsyncClient(**_settings(to), transport=transport)
        self.url = to.url
        super().__init__(AsyncDriver(self._http, retries, timeout_s, sleep))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _settings(to: Connection) -> dict[str, Any]:
    """A key is never sent on to where a redirect leads; a proxy is not asked for this machine."""
    headers = {"User-Agent": f"rlhfless/{rlhfless.__version__}"}
    if to.key is not None:
        headers["Authorization"] = f"Bearer {to.key}"
    return {
        "base_url": to.url,
        "headers": headers,
        "follow_redirects": False,
        "trust_env": not to.local,
    }
