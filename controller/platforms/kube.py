"""The Kubernetes API as the Knative platform needs it: get, list, apply, delete, follow, logs.

The official client does the connection, the credentials and their renewal; objects are plain
dictionaries. Refusals that pass (409, 429, 5xx, a broken connection) are tried again here, so that
what is raised stands:

- ``CapacityError``: a quota is used up;
- ``ForbiddenError``: no role allows it;
- ``UserError``: the API server does not accept the object, or does not know its kind;
- ``TransientError``: the API server could not be reached in ``PATIENCE_S``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.api_client import ApiClient

from controller.platforms.kube_refusals import Refusal
from rlhfless.errors import (
    TransientError,
    UserError,
)

Object = dict[str, Any]
Labels = Mapping[str, str | Sequence[str]]
"""A selector: by label, the value, or those of which it must be one."""
MANAGER = "rlhfless"
"""Our name as the owner of fields."""
PATIENCE_S = 30.0
WATCH_S = 300
"""The server ends a watch after so long; then it is begun anew where it ended."""
_PAGE = 500
_CHUNK_BYTES = 1 << 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_TIMEOUT = aiohttp.ClientTimeout(total=30.0, connect=10.0)
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10.0, sock_read=WATCH_S + 30.0)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """``api`` is the path of group and version, e.g. ``apis/serving.knative.dev/v1``."""

    api: str
    plural: str


SERVICES = Kind("apis/serving.knative.dev/v1", "services")
JOBS = Kind("apis/batch/v1", "jobs")
ADDRESSES = Kind("api/v1", "services")
"""The services of Kubernetes itself."""
WORKLOADS = (
    Kind("apis/kueue.x-k8s.io/v1beta2", "workloads"),
    Kind("apis/kueue.x-k8s.io/v1beta1", "workloads"),
)
"""Kueue's, in the versions in which it may be there."""
PODS = Kind("api/v1", "pods")
CONFIG_MAPS = Kind("api/v1", "configmaps")
NODES = Kind("api/v1", "nodes")
SECRETS = Kind("api/v1", "secrets")
STORAGE_CLASSES = Kind("apis/storage.k8s.io/v1", "storageclasses")
DEPLOYMENTS = Kind("apis/apps/v1", "deployments")


class Kube:
    """One connection pool to one cluster. ``async with``, or ``close()`` at the end."""

    def __init__(self, configuration: Configuration) -> None:
        # What is followed keeps its connection; a bound would let the rest wait for it for ever.
        configuration.connection_pool_maxsize = 0
        self._client = ApiClient(configuration)

    @classmethod
    async def connect(cls, context: str | None = None) -> Kube:
        """The cluster this pod runs in, else the one that the kubeconfig (``KUBECONFIG``) names.

        Raises ``UserError`` where neither is to be had.
        """
        configuration = Configuration()
        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(  # type: ignore[no-untyped-call]
                    client_configuration=configuration
                )
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=_kubeconfig(),
                    context=context,
                    client_configuration=configuration,
                )
        except (config.ConfigException, OSError) as error:
            raise UserError(
                f"no Kubernetes cluster is configured: {error}",
                hint="set KUBECONFIG, or run in a pod with a service account",
            ) from error
        return cls(configuration)

    async def __aenter__(self) -> Kube:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    # --- objects ----------------------------------------------------------------------------------

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """None: there is no such object."""
        try:
            return await self._patiently("GET", _path(kind, namespace, name))
        except Refusal as refusal:
            if refusal.status == 404:
                return None
            raise refusal.error(f"read {kind.plural} {name}") from refusal

    async def list(
        self, kind: Kind, namespace: str = "", labels: Labels | None = None
    ) -> tuple[list[Object], str]:
        """All objects with these labels, and the resource version of that answer."""
        query = {"limit": str(_PAGE), "labelSelector": _selector(labels)}
        found: list[Object] = []
        while True:
            try:
                page = await self._patiently("GET", _path(kind, namespace), query)
            except Refusal as refusal:
                if refusal.status == 410 and "continue" in query:  # it took too long: from the top
                    found, query = [], {k: v for k, v in query.items() if k != "continue"}
                    continue
                raise refusal.error(f"list {kind.plural}") from refusal
            found += page["items"]
            if not page["metadata"].get("continue"):
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = page["metadata"]["continue"]

    async def create(self, kind: Kind, body: Object, namespace: str = "") -> Object:
        """A new object; one that has a name must have it to itself: if it is there, this very
        request has made it when its answer was lost."""
        name = body["metadata"].get("name", "")
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        try:
            return await self._patiently("POST", _path(kind, namespace), query, body)
        except Refusal as refusal:
            if refusal.status == 409 and name:
                found = await self.get(kind, name, namespace)
                if found is not None:
                    return found
            raise refusal.error(f"create {kind.plural}") from refusal

    async def apply(
        self, kind: Kind, body: Object, namespace: str, manager: str = MANAGER
    ) -> Object:
        """Server-side apply: the object is as ``body`` says, whether it was there or not."""
        name = body["metadata"]["name"]
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        try:
            return await self._patiently("PATCH", _path(kind, namespace, name), query, body)
        except Refusal as refusal:
            raise refusal.error(f"apply {kind.plural} {name}") from refusal

    async def relinquish(self, kind: Kind, item: Object, manager: str) -> bool:
        """Give up every field that ``manager`` has applied: those that nobody else has applied go.
        Not if the object has changed since it was read, or is gone; False: so it is."""
        told = item["metadata"]
        kept = {name: told[name] for name in ("name", "uid", "resourceVersion")}
        body = {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": kept}
        path = _path(kind, told["namespace"], told["name"])
        query = {"fieldManager": manager, "force": "true"}
        try:
            await self._patiently("PATCH", path, query, body, repeat_conflict=False)
        except Refusal as refusal:
            if refusal.status == 409:
                return False
            raise refusal.error(f"apply {kind.plural} {told['name']}") from refusal
        return True

    async def delete(self, kind: Kind, item: Object) -> bool:
        """Delete the very object that was read, unless it has changed since; False: it has."""
        metadata = item["metadata"]
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
            "preconditions": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
        }
        path = _path(kind, metadata["namespace"], metadata["name"])
        try:
            await self._patiently("DELETE", path, {}, body, repeat_conflict=False)
        except Refusal as refusal:
            if refusal.status == 404:
                return True
            if refusal.status == 409:
                return False
            raise refusal.error(f"delete {kind.plural} {metadata['name']}") from refusal
        return True

    async def follow(
        self, kind: Kind, namespace: str, labels: Labels
    ) -> AsyncGenerator[dict[str, Object], None]:
        """The objects with these labels by name: now, and again whenever something changed.

        Never ends by itself: a watch that breaks is begun anew where it was, and where that is too
        long ago, by a new list. What an outage hid is seen then. Raises what ``list`` raises, but
        not for an API server that is away for a while.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                items, version = await self.list(kind, namespace, labels)
            except TransientError as error:
                _log.warning("%s; trying again", error.detail)
                continue
            known = {item["metadata"]["name"]: item for item in items}
            yield dict(known)
            while version:
                try:
                    async for event in self._watch(kind, namespace, labels, version):
                        pause_s = _FIRST_PAUSE_S
                        version = _take(known, event)
                        if event["type"] != "BOOKMARK":
                            yield dict(known)
                except Refusal as refusal:
                    if refusal.status == 410:
                        version = ""
                        continue
                    if not refusal.passes:
                        raise refusal.error(f"watch {kind.plural}") from refusal
                    _log.info("a watch was refused: %s", refusal.message)
                except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                    _log.info("a watch of %s broke: %s", kind.plural, error)
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def log(
        self,
        pod: str,
        container: str,
        namespace: str,
        *,
        since: str = "",
        follow: bool = False,
        previous: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """What a container writes, every line after its date and a space, in pieces as they come.

        ``since``: a date (RFC 3339, whole seconds); ``follow``: until the container ends, else what
        is there; ``previous``: of the one before its last restart. Not repeated here: raises
        ``Refusal``, and what aiohttp raises for a connection that breaks.
        """
        query = {
            "container": container,
            "timestamps": "true",
            "sinceTime": since,
            "follow": "true" if follow else "",
            "previous": "true" if previous else "",
        }
        path = f"{_path(PODS, namespace, pod)}/log"
        limits = _WATCH_TIMEOUT if follow else _TIMEOUT
        response = await self._send("GET", path, query, None, limits, accept="*/*")
        try:
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                yield chunk
        finally:
            response.close()

    async def _watch(
        self, kind: Kind, namespace: str, labels: Labels, version: str
    ) -> AsyncGenerator[Object, None]:
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
            "labelSelector": _selector(labels),
        }
        response = await self._send("GET", _path(kind, namespace), query, None, _WATCH_TIMEOUT)
        try:
            while line := await response.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Refusal(int(event["object"]["code"]), event["object"]["message"])
                yield event
        except json.JSONDecodeError as error:  # the connection ended within a line
            raise ConnectionError(str(error)) from error
        finally:
            response.close()

    # --- requests ---------------------------------------------------------------------------------

    async def _patiently(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        *,
        repeat_conflict: bool = True,
    ) -> Object:
        """One request, repeated while its refusal may pass; every request here may be repeated."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + PATIENCE_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                response = await self._send(method, path, query or {}, body, _TIMEOUT)
                return dict(json.loads(await response.read()))
            except Refusal as refusal:
                conflict = refusal.status == 409 and repeat_conflict and method != "POST"
                if not (refusal.passes or conflict):
                    raise
                why, wait_s = refusal.message, max(pause_s, refusal.retry_after_s)
            except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
                why, wait_s = str(error) or type(error).__name__, pause_s
            if loop.time() + wait_s > give_up_s:
                raise TransientError(f"the Kubernetes API server did not answer in order: {why}")
            await asyncio.sleep(wait_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None,
        limits: aiohttp.ClientTimeout,
        accept: str = "application/json",
    ) -> aiohttp.ClientResponse:
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        request = await self._client.param_serialize(
            method,
            f"/{path}",
            query_params=[(name, value) for name, value in query.items() if value],
            header_params={"Content-Type": kind, "Accept": accept},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(*request, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        if response.status < 300:
            return response
        raw = await response.read()
        try:
            message = str(json.loads(raw)["message"])
        except (ValueError, LookupError, TypeError):
            message = f"status {response.status}: {raw[:200]!r}"
        after = response.headers.get("Retry-After", "")
        raise Refusal(response.status, message, float(after) if after.isdecimal() else 0.0)


def _kubeconfig() -> str:
    """The files that tell of clusters, as ``kubectl`` finds them. Raises ``OSError`` if there is
    none: the client would print that, and go on to complain of what an empty one lacks."""
    files = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if not any(os.path.isfile(os.path.expanduser(file)) for file in files.split(os.pathsep)):
        raise OSError(f"there is no file {files}")
    return files


def _path(kind: Kind, namespace: str, name: str = "") -> str:
    scope = f"namespaces/{namespace}/" if namespace else ""
    return f"{kind.api}/{scope}{kind.plural}" + (f"/{name}" if name else "")


def _selector(labels: Labels | None) -> str:
    return ",".join(
        f"{name}={value}" if isinstance(value, str) else f"{name} in ({','.join(value)})"
        for name, value in (labels or {}).items()
    )


def _take(known: dict[str, Object], event: Object) -> str:
    """Note an event; the resource version to go on from."""
    metadata = event["object"]["metadata"]
    if event["type"] in ("ADDED", "MODIFIED"):
        known[metadata["name"]] = event["object"]
    elif event["type"] == "DELETED":
        known.pop(metadata["name"], None)
    return str(metadata["resourceVersion"])
