"""What Knative and Kubernetes do about the objects in ``kube_api``, with processes as pods.

Reconciles Knative Services: conditions come over several updates, then a URL; behind the URL an
activator holds each request until a pod has room for it, brings pods up by the number of requests
(never more than ``max-scale``), and lets them go after the scale-down delay. A pod is a real
``functions.host`` process on a loopback address of its own, at the port its container names; its
state is told through the API, and it ends by SIGTERM, by SIGKILL, or as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from tests.support.knative_activator import TICK_S, Activator, Pod, Revision
from tests.support.kube_api import ApiError, Change, KubeApi, Object, serve
from tests.support.pod_logs import PodLogs

SERVICES = "apis/serving.knative.dev/v1"
TOKEN = "the token of functions"
NOWHERE = {"rlhfless.io/no-such-node": "true"}
"""Labels that no node has; there is a node for any others."""
NO_IMAGE = {
    "phase": "Pending",
    "containerStatuses": [
        {
            "name": "function",
            "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
        }
    ],
}
"""The state of a pod whose image cannot be had."""
LONGEST_LINE_BYTES = 1 << 20
RESTART_S = 0.2
CRASHES = 2
"""After so many the kubelet holds a container back."""


class KnativeCluster:
    """``app`` of ``tests.apps.probe``: what pods run instead of their function, if not None.
    ``pod_status``: by a pod's name, the status it has instead of being started; ``service_status``:
    likewise of a Service. ``passed``: paths of all requests that came to the activator."""

    def __init__(self, api: KubeApi, folder: Path, app: str | None = "create") -> None:
        self.api = api
        self.logs = PodLogs(api)
        path = "/api/v1/namespaces/{namespace}/pods/{name}/exec"
        self.routes = [self.logs.route, WebSocketRoute(path, self.execute)]
        self.folder = folder
        self.app = [f"--app=tests.apps.probe:{app}"] if app else []
        self.revisions: dict[str, Revision] = {}
        self.pod_status: Callable[[str], Object | None] = lambda _: None
        self.service_status: Callable[[str], Object | None] = lambda _: None
        self.num_started = self.num_preempted = 0
        self.passed: list[str] = []
        self._numbers = itertools.count(1)
        self._net = f"127.{random.randrange(64, 250)}.{random.randrange(1, 250)}"
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = httpx.AsyncClient(timeout=None, trust_env=False)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[KnativeCluster, None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.api.store.listeners.append(self._notice)
        try:
            yield self
        finally:
            self.api.store.listeners.remove(self._notice)
            for revision in list(self.revisions.values()):
                revision.deleted = True
            for pod in [p for r in self.revisions.values() for p in r.pods]:
                if pod.process is not None and pod.process.returncode is None:
                    pod.process.kill()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._client.aclose()

    @property
    def pods(self) -> list[Pod]:
        return [pod for revision in self.revisions.values() for pod in revision.pods]

    def pod(self, name: str) -> Pod:
        (found,) = (pod for pod in self.pods if pod.name == name)
        return found

    # --- Services ---------------------------------------------------------------------------------

    def _notice(self, change: Change) -> None:
        api, plural, _ = change.key
        if (api, plural) != (SERVICES, "services"):
            return
        name = change.object["metadata"]["name"]
        if change.type == "ADDED":
            self._begin(self._run(Revision(change.object)))
        elif change.type == "DELETED":
            self.revisions[name].deleted = True
        else:
            self.revisions[name].service = change.object

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, revision: Revision) -> None:
        self.revisions[revision.name] = revision
        app = Activator(revision, self._client, self.passed)
        async with serve(app) as url:
            revision.url = url
            await self._tell_service(revision)
            while not revision.deleted:
                self._autoscale(revision)
                await asyncio.sleep(TICK_S)
            for pod in list(revision.pods):
                self._stop(revision, pod)
            while revision.pods:  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)

    async def _tell_service(self, revision: Revision) -> None:
        """As Knative does: unknown, then the configuration, then the route, then ready."""
        generation = revision.service["metadata"]["generation"]
        states = [("Unknown", "Unknown"), ("True", "Unknown"), ("True", "True")]
        for configured, routed in states:
            ready = "True" if routed == "True" else "Unknown"
            status: Object = {
                "observedGeneration": generation,
                "conditions": [
                    {"type": "ConfigurationsReady", "status": configured},
                    {"type": "Ready", "status": ready},
                    {"type": "RoutesReady", "status": routed},
                ],
            }
            if routed == "True":
                status |= {"url": revision.url, "address": {"url": revision.url}}
            status = self.service_status(revision.name) or status
            await asyncio.sleep(TICK_S)
            if revision.deleted:
                return
            self.api.store.set_status(self._key("services"), revision.name, status)

    def _key(self, plural: str, namespace: str = "default") -> tuple[str, str, str]:
        return (SERVICES if plural == "services" else "api/v1", plural, namespace)

    # --- pods -------------------------------------------------------------------------------------

    def _autoscale(self, revision: Revision) -> None:
        now_s = asyncio.get_running_loop().time()
        staying = [pod for pod in revision.pods if not pod.stopping]
        for _ in range(revision.wanted - len(staying)):
            self._start(revision)
        delay_s = float(revision.annotation("scale-down-delay", "0s").rstrip("s"))
        idle = [p for p in staying if p.ready and not p.calls and now_s - p.idle_since_s > delay_s]
        for pod in idle[: max(0, len(staying) - revision.wanted)]:
            self._stop(revision, pod)

    def _start(self, revision: Revision) -> None:
        number = next(self._numbers)
        pod = Pod(f"{revision.name}-00001-deployment-{number}", f"{self._net}.{number}")
        revision.pods.append(pod)
        self.num_started += 1
        template = revision.template
        body: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name,
                "labels": {
                    **template["metadata"]["labels"],
                    "serving.knative.dev/service": revision.name,
                },
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        self.api.store.create(self._key("pods"), body)
        self._begin(self._live(revision, pod))

    async def _live(self, revision: Revision, pod: Pod) -> None:
        try:
            told = self.pod_status(pod.name) or _unplaced(revision.template["spec"])
            if told is not None:
                self._tell(pod, told)
                while not (pod.stopping or revision.deleted):  # noqa: ASYNC110
                    await asyncio.sleep(TICK_S)
                return
            self._bind(pod)
            restarts = 0
            while not await self._contain(revision, pod, restarts):
                restarts += 1
                if restarts == CRASHES:
                    self._tell(pod, _crashed(pod, restarts))
                    while not (pod.stopping or revision.deleted):  # noqa: ASYNC110
                        await asyncio.sleep(TICK_S)
                    return
        finally:
            pod.ready = False
            revision.pods.remove(pod)
            with contextlib.suppress(ApiError):
                self.api.store.delete(self._key("pods"), pod.name, {})

    async def _contain(self, revision: Revision, pod: Pod, restarts: int) -> bool:
        """One life of the pod's container; False: it is to be started again."""
        pod.process = await self.spawn(revision.template["spec"]["containers"][0], pod)
        if restarts:
            self._tell(pod, _running(pod.ip, ready=False, restarts=restarts))
        ended = asyncio.create_task(pod.process.wait())
        while not (ended.done() or await self._answers(pod)):  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)
        if not ended.done():
            pod.ready, pod.idle_since_s = True, asyncio.get_running_loop().time()
            self._tell(pod, _running(pod.ip, ready=True, restarts=restarts))
        await ended
        pod.ready = False
        if pod.stopping or pod.lost or revision.deleted:
            return True
        self._tell(pod, _ended(pod, restarts))
        await asyncio.sleep(RESTART_S)
        return pod.stopping or revision.deleted

    async def spawn(self, container: Object, pod: Pod) -> asyncio.subprocess.Process:
        """What a kubelet does of the container: its command, its arguments, its environment."""
        assert container["command"] == ["python", "-m", "functions.host"]
        environment = {"HOSTNAME": pod.name}
        for item in container["env"]:
            secret = item.get("valueFrom", {}).get("secretKeyRef")
            environment[item["name"]] = TOKEN if secret else item["value"]
        scratch = self.folder / pod.name
        scratch.mkdir(exist_ok=True)
        environment |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
        arguments = [a for a in container["args"] if not a.startswith("--workdir=")]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "functions.host", *arguments),
            *(f"--workdir={scratch}", f"--host={pod.ip}", *self.app),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LONGEST_LINE_BYTES,
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        self._begin(self.logs.keep(self.logs.begin(pod.name), process.stdout))
        return process

    async def _answers(self, pod: Pod) -> bool:
        try:
            response = await self._client.get(f"http://{pod.ip}:8000/readyz")
        except httpx.TransportError:
            return False
        return response.status_code == 200

    def preempt(self, name: str) -> None:
        """A spot notice: the pod is deleted, its process gets SIGTERM when it has no request."""
        self.num_preempted += 1
        for revision in self.revisions.values():
            for pod in revision.pods:
                if pod.name == name:
                    self._stop(revision, pod)

    async def execute(self, socket: WebSocket) -> None:
        """``exec`` of the one command that tests send: SIGTERM to the function."""
        await socket.accept(subprotocol="v4.channel.k8s.io")
        command = socket.query_params.getlist("command")
        assert command == ["sh", "-c", "kill -TERM 1"], command
        process = self.pod(socket.path_params["name"]).process
        assert process is not None
        process.terminate()
        await socket.send_bytes(b"\x03" + b'{"status": "Success"}')
        await socket.close()

    def kill(self, name: str) -> None:
        """The node is gone."""
        pod = self.pod(name)
        assert pod.process is not None
        pod.lost = True
        pod.process.kill()

    def crash(self, name: str) -> None:
        """Its process dies; the kubelet starts it again."""
        process = self.pod(name).process
        assert process is not None
        process.kill()

    def _stop(self, revision: Revision, pod: Pod) -> None:
        if pod.stopping:
            return
        pod.stopping = True
        with contextlib.suppress(ApiError):
            now = self.api.store.get(self._key("pods"), pod.name)
            now["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
            now["metadata"].pop("resourceVersion")
            self.api.store.update(self._key("pods"), now)
        self._begin(self._terminate(pod))

    async def _terminate(self, pod: Pod) -> None:
        """Knative's own hook holds SIGTERM back while the pod has requests."""
        while pod.calls:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)
        if pod.process is not None and pod.process.returncode is None:
            pod.process.terminate()

    def _bind(self, pod: Pod) -> None:
        now = self.api.store.get(self._key("pods"), pod.name)
        now["spec"]["nodeName"] = "node-1"
        now["status"] = _running(pod.ip, ready=False)
        self.api.store.update(self._key("pods"), now)

    def _tell(self, pod: Pod, status: Object) -> None:
        with contextlib.suppress(ApiError):
            self.api.store.set_status(self._key("pods"), pod.name, status)


def _unplaced(spec: Object) -> Object | None:
    """The status of a pod that no node takes."""
    if not NOWHERE.items() <= spec.get("nodeSelector", {}).items():
        return None
    message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"phase": "Pending", "conditions": [{**unscheduled, "message": message}]}


def _ended(pod: Pod, restarts: int) -> Object:
    status = _running(pod.ip, ready=False, restarts=restarts)
    code = pod.process.returncode if pod.process is not None else None
    status["containerStatuses"][0]["state"] = {"terminated": {"exitCode": code, "reason": "Error"}}
    return status


def _crashed(pod: Pod, restarts: int) -> Object:
    status = _running(pod.ip, ready=False, restarts=restarts)
    (container,) = status["containerStatuses"]
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
    code = pod.process.returncode if pod.process is not None else None
    container["state"] = {"waiting": waiting}
    container["lastState"] = {"terminated": {"exitCode": code, "reason": "Error"}}
    return status


def _running(ip: str, *, ready: bool, restarts: int = 0) -> Object:
    state = {"running": {"startedAt": "2026-01-01T00:00:01Z"}}
    return {
        "phase": "Running",
        "podIP": ip,
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True" if ready else "False"},
        ],
        "containerStatuses": [{"name": "function", "restartCount": restarts, "state": state}],
    }
