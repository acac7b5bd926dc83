"""A Ray cluster as the controller reaches it: over HTTP, by the agent in it.

The controller has no Ray: the agent (``functions.ray_serve.agent``) makes applications and tells
what runs. One ``RayCluster`` serves all jobs of a process; it asks for the state of things while
somebody follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection

import httpx
import msgspec

from controller.platforms.knative_calls import new_client
from rlhfless.errors import (
    CapacityError,
    InternalError,
    RlhflessError,
    TransientError,
    UserError,
    from_problem,
)
from rlhfless.ray_apps import RayApp, RayAppState, RayState, agent_name, agent_route

POLL_S = 0.25
_SLOW_POLL_S = 5.0
ANSWER_S = 60.0
"""The agent answers within this, though Serve is slow when it is busy."""
LOST_S = 60.0
"""A cluster that says nothing for so long is gone."""
_log = logging.getLogger(__name__)
Follower = Callable[[RayState], None]


class RayCluster:
    """``async with``; ``token``: the agent's, of which those of jobs are derived. ``elastic``:
    whether nodes may be added when none is large enough."""

    def __init__(self, serve_url: str, release: str, token: str, *, elastic: bool = True) -> None:
        self.serve_url = serve_url
        self.release = release
        self.elastic = elastic
        self.client = new_client()
        self.token = token
        self._agent = serve_url + agent_route(release)
        self.followers: set[Follower] = set()
        self._polling: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._heard_s = 0.0

    async def __aenter__(self) -> RayCluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await self.client.aclose()

    def token_of(self, job: str) -> str:
        """What a job's functions ask of their callers: of use for no other job's, nor the agent."""
        return hmac.new(self.token.encode(), job.encode(), hashlib.sha256).hexdigest()

    # --- the agent --------------------------------------------------------------------------------

    async def version(self) -> str | None:
        """Of rlhfless in the cluster; None: no agent answers there."""
        try:
            answer = await self.client.get(f"{self._agent}/healthz", timeout=10)
            return str(answer.json()["version"]) if answer.status_code == 200 else None
        except (httpx.TransportError, ValueError, KeyError):
            return None

    async def admits(self) -> bool:
        """Whether the agent knows our token."""
        answer = await self._ask("GET", "/apps")
        return answer.status_code != 401

    async def deploy(self, app: RayApp, *, take: bool) -> bool:
        """Make or change it; False: another controller holds it, and ``take`` is not set."""
        query = "?take" if take else ""
        answer = await self._ask("PUT", f"/apps{query}", msgspec.json.encode(app))
        return _settled(answer)

    async def delete(self, name: str, holder: str, *, force: bool = False) -> bool:
        """Have it go; it is gone when the state no longer has it. False: another holds it."""
        params = httpx.QueryParams({"holder": holder} | ({"force": ""} if force else {}))
        return _settled(await self._ask("DELETE", f"/apps/{name}?{params}"))

    async def remove_agent(self) -> None:
        """The last thing asked of it, if it is there; what cannot be removed is found by its name
        again."""
        if await self.version() is None:
            return
        try:
            await self.delete(agent_name(self.release), "")
        except RlhflessError as error:
            _log.warning("the agent is left on Ray: %s", error.detail)

    async def state(self) -> RayState:
        answer = await self._ask("GET", "/apps")
        if answer.status_code != 200:
            raise _refusal(answer)
        try:
            return msgspec.json.decode(answer.content, type=RayState)
        except msgspec.DecodeError as error:
            raise InternalError(f"the agent's answer is no state: {error}") from error

    async def _ask(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}"}
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self.client.request(
                    method, self._agent + path, content=content, headers=headers
                )
        except TimeoutError as error:
            raise TransientError(f"the Ray cluster did not answer within {ANSWER_S:g} s") from error
        except httpx.TransportError as error:
            detail = f"the Ray cluster at {self.serve_url} cannot be reached: "
            raise TransientError(detail + (str(error) or type(error).__name__)) from error

    # --- following --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def following(self, follower: Follower) -> AsyncGenerator[None, None]:
        """``follower`` is told the state of things, again and again."""
        if not self.followers:  # until now nobody asked
            self._heard_s = asyncio.get_running_loop().time()
        self.followers.add(follower)
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        self._again.set()
        try:
            yield
        finally:
            self.followers.discard(follower)

    def look(self) -> None:
        """Something has happened: ask now."""
        self._again.set()

    @property
    def silent_s(self) -> float:
        """Seconds since the cluster last answered somebody who follows."""
        return asyncio.get_running_loop().time() - self._heard_s if self._polling else 0.0

    async def _poll(self) -> None:
        pause_s = POLL_S
        while True:
            self._again.clear()
            if self.followers:
                try:
                    state = await self.state()
                except RlhflessError as error:
                    _log.warning("%s", error.detail)
                    pause_s = min(_SLOW_POLL_S, 2 * pause_s)
                else:
                    pause_s, self._heard_s = POLL_S, asyncio.get_running_loop().time()
                    for follower in list(self.followers):
                        follower(state)
            else:
                await self._again.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._again.wait()


async def collect(cluster: RayCluster, live: Callable[[], Awaitable[Collection[str]]]) -> list[str]:
    """Remove the applications of this release whose jobs nobody runs any more; their names.

    ``live`` tells the jobs that run, or are about to. It is asked after the applications have been
    listed: a job that begins in between is among them.
    """
    found: list[RayAppState] = [app for app in (await cluster.state()).apps if app.holder]
    if not found:
        return []
    running = await live()
    removed = []
    for app in found:
        if app.job not in running and await cluster.delete(app.name, app.holder):
            _log.info("removed %s, which an earlier controller left", app.name)
            removed.append(app.name)
    return removed


def _settled(answer: httpx.Response) -> bool:
    if answer.status_code in (204, 409):
        return answer.status_code == 204
    raise _refusal(answer)


def _refusal(answer: httpx.Response) -> RlhflessError:
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "category" in problem:
        return from_problem(problem)
    detail = f"the agent in the Ray cluster answered {answer.status_code}: {answer.text[:200]}"
    if answer.status_code == 401:
        return UserError("the agent in the Ray cluster asks for another token")
    return (
        TransientError(detail) if answer.status_code in (404, 500, 503) else CapacityError(detail)
    )
