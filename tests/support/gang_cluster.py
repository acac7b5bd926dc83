"""What Kubernetes' Job controller and Kueue do about Indexed Jobs, with processes as pods.

Kueue, as its documentation has it: it makes a Workload for a Job that names a queue, leaves the Job
suspended until the queue's quota (pods, here) takes all of it, says in the Workload's conditions
why it does not, and suspends it again when it evicts it. The Job controller makes a pod for each
index of a Job that is not suspended, deletes them when it is suspended, and with no retries fails
the Job at the first pod that fails. What a deleted Job owns goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import socket
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from tests.support.knative_activator import TICK_S, Pod
from tests.support.knative_cluster import KnativeCluster
from tests.support.kube_api import ApiError, Change, Object

JOBS = ("apis/batch/v1", "jobs", "default")
PODS = ("api/v1", "pods", "default")
WORKLOADS = ("apis/kueue.x-k8s.io/v1beta2", "workloads", "default")
QUEUE = "kueue.x-k8s.io/queue-name"
INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(eq=False)
class Run:
    """A Job's pods, from when it was let begin until it is suspended or over."""

    job: Object
    pods: list[Pod] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)  # exit codes by pod
    stopping: bool = False

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])


class GangCluster:
    """``quota``: pods that each LocalQueue has room for. ``num_admitted``: Jobs so far. States of
    pods are told as ``KnativeCluster.pod_status`` says."""

    def __init__(self, cluster: KnativeCluster, quota: dict[str, int]) -> None:
        self.cluster = cluster
        self.quota = quota
        self.num_admitted = 0
        self.runs: dict[str, Run] = {}
        self._store = cluster.api.store
        self._numbers = itertools.count(200)
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[GangCluster, None]:
        self._store.listeners.append(self._notice)
        queue = asyncio.create_task(self._queue())
        try:
            yield self
        finally:
            self._store.listeners.remove(self._notice)
            queue.cancel()
            for pod in self.pods:
                if pod.process is not None and pod.process.returncode is None:
                    pod.process.kill()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(queue, *self._tasks, return_exceptions=True)

    @property
    def pods(self) -> list[Pod]:
        return [pod for run in self.runs.values() for pod in run.pods]

    def pod(self, index: int) -> Pod:
        """Of the one gang that runs."""
        (found,) = (p for p in self.pods if f"-{index}-" in p.name and not p.stopping)
        return found

    # --- Jobs -------------------------------------------------------------------------------------

    def _notice(self, change: Change) -> None:
        if change.key != JOBS:
            return
        job, name = change.object, change.object["metadata"]["name"]
        if change.type == "ADDED":
            self._begin(self._take_note(job))
        elif change.type == "DELETED":
            self._begin(self._collect(job))
        elif change.before is not None:
            was, now = (one["spec"]["suspend"] for one in (change.before, job))
            if was and not now:
                self.runs[name] = Run(job)
                self._begin(self._run(self.runs[name]))
            elif now and not was:
                self._begin(self._end(self.runs[name]))

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, job: Object) -> None:
        """The garbage collector, some time after."""
        await asyncio.sleep(TICK_S)
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        if name in self.runs:
            run = self.runs[name]
            await self._end(run)
            while run.pods:  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)
            del self.runs[name]
        for key, items in list(self._store.objects.items()):
            for item in list(items.values()):
                owners = item["metadata"].get("ownerReferences", [])
                if any(owner["uid"] == uid for owner in owners):
                    self._store.delete(key, item["metadata"]["name"], {})

    # --- Kueue ------------------------------------------------------------------------------------

    async def _take_note(self, job: Object) -> None:
        metadata = job["metadata"]
        assert job["spec"]["suspend"], "Kueue's webhook would have suspended it"
        queue = metadata["labels"].get(QUEUE)
        workload: Object = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {
                "name": f"job-{metadata['name']}-{uuid.uuid4().hex[:5]}",
                "labels": {"kueue.x-k8s.io/job-uid": metadata["uid"]},
                "ownerReferences": [
                    {"kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
                ],
            },
            "spec": {"queueName": queue, "podSets": [{"count": job["spec"]["parallelism"]}]},
            "status": {"conditions": []},
        }
        self._store.create(WORKLOADS, workload)

    async def _queue(self) -> None:
        while True:
            for workload in self._store.all(WORKLOADS):
                with contextlib.suppress(ApiError):  # it went meanwhile
                    self._consider(workload)
            await asyncio.sleep(TICK_S)

    def _consider(self, workload: Object) -> None:
        if _admitted(workload):
            return
        queue, need = workload["spec"]["queueName"], workload["spec"]["podSets"][0]["count"]
        if queue not in self.quota:
            self._tell(workload, "Inadmissible", f"LocalQueue {queue} doesn't exist")
            return
        used = sum(
            other["spec"]["podSets"][0]["count"]
            for other in self._store.all(WORKLOADS)
            if _admitted(other) and other["spec"]["queueName"] == queue
        )
        if used + need > self.quota[queue]:
            more = used + need - self.quota[queue]
            said = "couldn't assign flavors to pod set main: insufficient unused quota for pods in "
            self._tell(workload, "Pending", f"{said}flavor default-flavor, {more} more needed")
            return
        conditions = [
            {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved"},
            {"type": "Admitted", "status": "True", "reason": "Admitted"},
        ]
        self._store.set_status(WORKLOADS, workload["metadata"]["name"], {"conditions": conditions})
        self.num_admitted += 1
        self._suspend(workload, False)

    def evict(self) -> None:
        """Every gang, to accommodate a workload of higher priority; its quota is gone."""
        self.quota = dict.fromkeys(self.quota, 0)
        for workload in self._store.all(WORKLOADS):
            evicted = {"type": "Evicted", "status": "True", "reason": "Preempted"}
            evicted["message"] = "Preempted to accommodate a higher priority Workload"
            name = workload["metadata"]["name"]
            self._store.set_status(WORKLOADS, name, {"conditions": [evicted]})
            self._suspend(workload, True)

    def _suspend(self, workload: Object, suspended: bool) -> None:
        (owner,) = workload["metadata"]["ownerReferences"]
        job = self._store.get(JOBS, owner["name"])
        job["spec"]["suspend"] = suspended
        self._store.update(JOBS, job)

    def _tell(self, workload: Object, reason: str, message: str) -> None:
        said = {"type": "QuotaReserved", "status": "False", "reason": reason, "message": message}
        kept = [c for c in workload["status"]["conditions"] if c["type"] == "Evicted"]
        status = {"conditions": [*kept, said]}
        self._store.set_status(WORKLOADS, workload["metadata"]["name"], status)

    # --- the Job controller and the kubelet -------------------------------------------------------

    async def _run(self, run: Run) -> None:
        spec = run.job["spec"]
        assert spec["completionMode"] == "Indexed" and spec["backoffLimit"] == 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for index in range(spec["completions"]):
            ip = f"{self.cluster._net}.{next(self._numbers) % 250}"
            run.pods.append(Pod(f"{run.name}-{index}-{uuid.uuid4().hex[:5]}", ip))
        rendezvous = f"{run.pods[0].ip}:{port}"
        for index, pod in enumerate(list(run.pods)):
            self._store.create(PODS, self._pod(run, index, pod))
            self._begin(self._live(run, index, pod, rendezvous))

    def _pod(self, run: Run, index: int, pod: Pod) -> Object:
        template = copy.deepcopy(run.job["spec"]["template"])
        labels = template["metadata"]["labels"]
        labels |= {INDEX: str(index), "batch.kubernetes.io/job-name": run.name}
        owner = {"kind": "Job", "name": run.name, "uid": run.job["metadata"]["uid"]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name,
                "labels": labels,
                "annotations": {INDEX: str(index)},
                "ownerReferences": [owner],
            },
            "spec": {**template["spec"], "hostname": f"{run.name}-{index}"},
            "status": {"phase": "Pending"},
        }

    async def _live(self, run: Run, index: int, pod: Pod, rendezvous: str) -> None:
        cluster = self.cluster
        told = cluster.pod_status(pod.name)
        if told is not None:
            cluster._tell(pod, told)
            while not pod.stopping:  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)
        else:
            cluster._bind(pod)
            container = copy.deepcopy(run.job["spec"]["template"]["spec"]["containers"][0])
            name = f"{run.name}-0.{run.job['spec']['template']['spec']['subdomain']}"
            container["args"] = [
                argument.replace("$(JOB_COMPLETION_INDEX)", str(index))
                if name not in argument
                else f"--rendezvous={rendezvous}"  # as the names of the Service resolve
                for argument in container["args"]
            ]
            pod.process = await cluster.spawn(container, pod)
            code = await pod.process.wait()
            run.ended[pod.name] = code
            if not pod.stopping:
                self._over(run, pod, code)
                while not pod.stopping:  # noqa: ASYNC110 (a pod that has ended stays)
                    await asyncio.sleep(TICK_S)
        run.pods.remove(pod)
        with contextlib.suppress(ApiError):
            self._store.delete(PODS, pod.name, {})

    def _over(self, run: Run, pod: Pod, code: int) -> None:
        phase = "Failed" if code else "Succeeded"
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error"}
        if not code:
            ended["reason"] = "Completed"
        container = {"name": "function", "restartCount": 0, "state": {"terminated": ended}}
        conditions = [{"type": "DisruptionTarget", "status": "True"}] if pod.lost else []
        self.cluster._tell(
            pod, {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
        )
        if code:
            self._fail(run)

    def _fail(self, run: Run) -> None:
        why = {"reason": "BackoffLimitExceeded"}
        why["message"] = "Job has reached the specified backoff limit"
        failed = {"type": "Failed", "status": "True", **why}
        with contextlib.suppress(ApiError):
            self._store.set_status(JOBS, run.name, {"conditions": [failed]})
        for other in run.pods:
            if other.name not in run.ended:
                self._stop(other)

    async def _end(self, run: Run) -> None:
        for pod in list(run.pods):
            self._stop(pod)

    def _stop(self, pod: Pod) -> None:
        if pod.stopping:
            return
        pod.stopping = True
        with contextlib.suppress(ApiError):
            now = self._store.get(PODS, pod.name)
            now["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
            now["metadata"].pop("resourceVersion")
            self._store.update(PODS, now)
        if pod.process is not None and pod.process.returncode is None:
            pod.process.terminate()

    # --- what befalls pods ------------------------------------------------------------------------

    def kill(self, pod: Pod) -> None:
        """Its node is gone."""
        assert pod.process is not None
        pod.lost = True
        pod.process.kill()

    def crash(self, pod: Pod) -> None:
        assert pod.process is not None
        pod.process.kill()

    def preempt(self, pod: Pod) -> None:
        """A notice: the pod is deleted, its process gets SIGTERM; without retries that is the end
        of its Job."""
        (run,) = (run for run in self.runs.values() if pod in run.pods)
        self._stop(pod)
        self._fail(run)


def _admitted(workload: Object) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(c["type"] == "Admitted" and c["status"] == "True" for c in conditions)
