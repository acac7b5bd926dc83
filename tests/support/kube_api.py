"""A Kubernetes API server, as far as a client can tell: state, versions, watches, refusals.

Real HTTP on a loopback port. Any group, version and plural is stored; those in ``schemas`` have
their objects checked. ``list`` and ``watch`` take label selectors and resource versions; a version
older than the last compaction is answered 410; ``apply`` is server-side apply with fields that have
one owner or several; deletes honour preconditions. ``fail_next`` makes the server refuse or cut
off, ``drop_watches`` ends every watch in the middle of its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import socket
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from tests.support.kube_objects import (
    Object,
    Path,
    Selector,
    at,
    drop,
    leaves,
    matches,
    parse_selector,
    put,
)

Key = tuple[str, str, str]
"""API (``apis/serving.knative.dev/v1``), plural, namespace."""
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(frozen=True)
class Change:
    """``type`` as of watch events; ``before``: None for a new object."""

    version: int
    key: Key
    type: str
    object: Object
    before: Object | None


@dataclass
class Store:
    """The objects and their history. ``schemas``: by plural, raises ``ApiError`` for a bad one."""

    schemas: dict[str, Callable[[Object], None]] = field(default_factory=dict)
    objects: dict[Key, dict[str, Object]] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    compacted: int = 0
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _owned: dict[str, dict[Path, set[str]]] = field(default_factory=dict)  # by uid
    latest: int = 0

    def get(self, key: Key, name: str) -> Object:
        try:
            return copy.deepcopy(self.objects.get(key, {})[name])
        except KeyError:
            raise ApiError(404, "NotFound", f'{key[1]} "{name}" not found') from None

    def all(self, key: Key, selector: Selector | None = None) -> list[Object]:
        """In the order of their names; ``key`` with an empty namespace: of all namespaces."""
        found = [
            item
            for (api, plural, namespace), items in self.objects.items()
            if (api, plural) == key[:2] and key[2] in ("", namespace)
            for item in items.values()
        ]
        chosen = [item for item in found if matches(item, selector or {})]
        return copy.deepcopy(sorted(chosen, key=lambda item: item["metadata"]["name"]))

    def create(self, key: Key, body: Object) -> Object:
        name = body["metadata"]["name"]
        if name in self.objects.get(key, {}):
            raise ApiError(409, "AlreadyExists", f'{key[1]} "{name}" already exists')
        new = copy.deepcopy(body)
        new["metadata"] |= {
            "namespace": key[2],
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        return self._put(key, "ADDED", new, None)

    def update(self, key: Key, body: Object) -> Object:
        name = body["metadata"]["name"]
        old = self.get(key, name)
        given = body["metadata"].get("resourceVersion")
        if given and given != old["metadata"]["resourceVersion"]:
            raise ApiError(
                409, "Conflict", f'{key[1]} "{name}": the object has been modified; try again'
            )
        new = copy.deepcopy(body)
        for kept in ("uid", "creationTimestamp", "namespace", "generation", "deletionTimestamp"):
            if kept in old["metadata"]:
                new["metadata"][kept] = old["metadata"][kept]
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] += 1
        return self._put(key, "MODIFIED", new, old)

    def set_status(self, key: Key, name: str, status: Object) -> None:
        """As controllers write it: the subresource, whatever else the object says."""
        now = self.get(key, name)
        self.update(key, {**now, "status": status})

    def apply(self, key: Key, name: str, body: Object, manager: str, force: bool) -> Object:
        """Server-side apply: sets what is given; drops what this manager alone gave before and does
        not give now; refuses (409) to set otherwise what another manager owns, unless forced. Who
        sets what another has set owns it as well. A uid or version that is given must be right."""
        body = copy.deepcopy(body)
        body.pop("status", None)
        paths = set(leaves(body))
        given = {n: body["metadata"].pop(n, None) for n in ("uid", "resourceVersion")}
        try:
            old = self.get(key, name)
        except ApiError:
            if given["uid"]:
                raise ApiError(409, "Conflict", "uid mismatch: no existing object") from None
            new = self.create(key, body)
            self._owned[new["metadata"]["uid"]] = {path: {manager} for path in paths}
            return new
        if any(said and said != old["metadata"][name_] for name_, said in given.items()):
            raise ApiError(409, "Conflict", f'{key[1]} "{name}": the object has been modified')
        owned = self._owned.setdefault(old["metadata"]["uid"], {})
        new = copy.deepcopy(old)
        other = [path for path in paths if at(old, path) != at(body, path)]
        taken = [path for path in other if owned.get(path, set()) - {manager}]
        if taken and not force:
            fields = ", ".join(".".join(path) for path in taken)
            raise ApiError(409, "Conflict", f"Apply failed with conflicts: {fields}")
        for path in [p for p, who in owned.items() if manager in who and p not in paths]:
            owned[path].discard(manager)
            if not owned[path]:
                drop(new, path)
                del owned[path]
        for path in paths:
            put(new, path, at(body, path))
            owned[path] = {manager} if path in other else owned.get(path, set()) | {manager}
        return self.update(key, new)

    def delete(self, key: Key, name: str, preconditions: Mapping[str, str]) -> Object:
        old = self.get(key, name)
        for said in ("uid", "resourceVersion"):
            if preconditions.get(said, old["metadata"][said]) != old["metadata"][said]:
                raise ApiError(409, "Conflict", f"the {said} in the precondition does not match")
        del self.objects[key][name]
        return self._note(key, "DELETED", old, old)

    def compact(self) -> None:
        """Forget the history: who watches from an old version must list anew."""
        self.compacted = self.latest
        self.history.clear()

    def _put(self, key: Key, kind: str, new: Object, old: Object | None) -> Object:
        if key[1] in self.schemas:
            self.schemas[key[1]](new)
        self.objects.setdefault(key, {})[new["metadata"]["name"]] = new
        return self._note(key, kind, new, old)

    def _note(self, key: Key, kind: str, new: Object, old: Object | None) -> Object:
        self.latest = next(self._versions)
        new["metadata"]["resourceVersion"] = str(self.latest)
        change = Change(self.latest, key, kind, copy.deepcopy(new), old)
        self.history.append(change)
        for listener in list(self.listeners):
            listener(change)
        return copy.deepcopy(new)


@dataclass
class KubeApi:
    """``url``: where it answers; ``requests``: what was asked, verb (``list``, ``watch``, ``patch``
    ...) and plural."""

    store: Store = field(default_factory=Store)
    url: str = ""
    token: str = "a-service-account"
    requests: list[tuple[str, str]] = field(default_factory=list)
    denied: set[tuple[str, str]] = field(default_factory=set)
    """Verbs (``get``, ``patch`` ...) on plurals that no role allows who asks."""
    asks: str = "somebody"
    others: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """What is denied to other users, by name."""
    unknown: set[str] = field(default_factory=set)
    """Groups and versions (``apis/batch/v1``) that this server has not."""
    _failures: deque[tuple[str, ApiError]] = field(default_factory=deque)
    _watches: set[asyncio.Queue[Change | None]] = field(default_factory=set)

    def fail_next(self, *errors: ApiError, verb: str = "") -> None:
        """The next requests, of this verb if one is given, are answered so, one each."""
        self._failures.extend((verb, error) for error in errors)

    def drop_watches(self) -> None:
        for queue in self._watches:
            queue.put_nowait(None)

    @property
    def num_watches(self) -> int:
        return len(self._watches)

    @contextlib.asynccontextmanager
    async def serving(self, *further: BaseRoute) -> AsyncGenerator[KubeApi, None]:
        """``further``: what else this server answers, such as discovery."""
        routes = [
            Route(
                f"/{head}/{tail}", self._answer, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]
            )
            for head in ("api/{version}", "apis/{group}/{version}")
            for tail in (
                "namespaces/{namespace}/{plural}/{name}/status",
                "namespaces/{namespace}/{plural}/{name}",
                "namespaces/{namespace}/{plural}",
                "{plural}/{name}",
                "{plural}",
            )
        ]
        self.store.listeners.append(self._spread)
        async with serve(Starlette(routes=[*further, *routes])) as url:
            self.url = url
            try:
                yield self
            finally:
                self.drop_watches()

    def _spread(self, change: Change) -> None:
        for queue in self._watches:
            queue.put_nowait(change)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._answered(request)
        except ApiError as error:
            headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else {}
            return JSONResponse(error.body, error.code, headers)

    async def _answered(self, request: Request) -> Response:
        path = request.path_params
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            raise ApiError(401, "Unauthorized", "Unauthorized")
        api = f"apis/{path['group']}" if "group" in path else "api"
        key = (f"{api}/{path['version']}", path["plural"], path.get("namespace", ""))
        name, query = path.get("name"), request.query_params
        watching = query.get("watch") in ("true", "True", "1")
        verb = {"POST": "create", "PUT": "update"}.get(request.method, request.method.lower())
        if name is None and verb == "get":
            verb = "watch" if watching else "list"
        self.requests.append((verb, key[1]))
        if self._failures and self._failures[0][0] in ("", verb):
            raise self._failures.popleft()[1]
        if key[0] in self.unknown:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if (verb, key[1]) in self.denied:
            raise ApiError(403, "Forbidden", f"{key[1]} is forbidden: cannot {verb} resource")
        body = json.loads(raw) if (raw := await request.body()) else {}
        store = self.store
        match verb:
            case "watch":
                return StreamingResponse(
                    self._watch(key, dict(query)), media_type="application/json"
                )
            case "list":
                items = store.all(key, parse_selector(query.get("labelSelector", "")))
                start = int(query.get("continue") or 0)
                limit = int(query.get("limit") or len(items) or 1)
                more = str(start + limit) if start + limit < len(items) else ""
                metadata = {"resourceVersion": str(store.latest), "continue": more}
                page = {"kind": "List", "metadata": metadata, "items": items[start : start + limit]}
                return JSONResponse(page)
            case "get":
                return JSONResponse(store.get(key, str(name)))
            case "create" if key[1] == "selfsubjectreviews":
                who = {"userInfo": {"username": self.asks}}
                return JSONResponse({**body, "status": who}, 201)
            case "create" if key[1].endswith("subjectaccessreviews"):
                wanted = body["spec"]["resourceAttributes"]
                asked = "/".join(filter(None, (wanted["resource"], wanted.get("subresource"))))
                own = self.others.get(body["spec"].get("user", ""), self.denied)
                allowed = (wanted["verb"], asked) not in own
                return JSONResponse({**body, "status": {"allowed": allowed}}, 201)
            case "create":
                return JSONResponse(store.create(key, body), 201)
            case "update":
                return JSONResponse(store.update(key, body))
            case "patch" if "apply-patch" in request.headers["content-type"]:
                if not query.get("fieldManager"):
                    raise ApiError(400, "BadRequest", "fieldManager is required for apply patch")
                force = query.get("force") in ("true", "True")
                manager = query["fieldManager"]
                if query.get("dryRun") == "All":
                    store = copy.deepcopy(Store(store.schemas, store.objects))
                return JSONResponse(store.apply(key, str(name), body, manager, force))
            case "delete":
                return JSONResponse(store.delete(key, str(name), body.get("preconditions") or {}))
        raise ApiError(405, "MethodNotAllowed", f"{request.method} is not known here")

    async def _watch(self, key: Key, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        selector = parse_selector(query.get("labelSelector", ""))
        since = int(query.get("resourceVersion") or 0)
        if since < self.store.compacted:
            gone = ApiError(410, "Expired", f"too old resource version: {since}")
            yield encode("ERROR", gone.body)
            return
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        for change in self.store.history:
            if change.version > since:
                queue.put_nowait(change)
        self._watches.add(queue)
        try:
            async with asyncio.timeout(float(query.get("timeoutSeconds") or 300)):
                while (change := await queue.get()) is not None:
                    if change.key[:2] == key[:2] and key[2] in ("", change.key[2]):
                        told = as_selected(change, selector)
                        if told is not None:
                            yield encode(told, change.object)
        except TimeoutError:
            return
        finally:
            self._watches.discard(queue)


def as_selected(change: Change, selector: Selector) -> str | None:
    """A change as a watch with a selector tells it: objects come into it and leave it."""
    was = change.before is not None and matches(change.before, selector)
    now = change.type != "DELETED" and matches(change.object, selector)
    if was and now:
        return "MODIFIED"
    if now:
        return "ADDED"
    return "DELETED" if was else None


def encode(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


@contextlib.asynccontextmanager
async def serve(app: Any) -> AsyncGenerator[str, None]:
    """An ASGI app on a free loopback port, in this event loop."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_config=None, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        try:
            await task
        finally:
            listening.close()
