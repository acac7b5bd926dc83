"""The Jobs of a training job's gangs in the API: made, taken over, deleted, and what Kueue says."""

from __future__ import annotations

import uuid

from controller.platforms.base import Deployment
from controller.platforms.gang_manifest import (
    address_manifest,
    gang_labels,
    gang_size,
    job_manifest,
    shape,
)
from controller.platforms.gang_status import NOT_NOTED, JobView, read_job, read_workload
from controller.platforms.knative_garbage import delete_held
from controller.platforms.knative_manifest import HOLDER, service_name
from controller.platforms.knative_owner import owner_reference
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.knative_status import Trouble
from controller.platforms.kube import ADDRESSES, JOBS, WORKLOADS, Kube, Object
from rlhfless.errors import ForbiddenError, UserError

_JOB_UID = "kueue.x-k8s.io/job-uid"


class GangJobs:
    """``deployment``: as it is here; ``holder``: whose Jobs these are. Raises ``UserError`` for
    workers that no gang has."""

    def __init__(
        self, kube: Kube, settings: KnativeSettings, job: str, deployment: Deployment, holder: str
    ) -> None:
        self.size = gang_size(deployment, settings)
        self.labels = gang_labels(settings, job)
        self._kube = kube
        self._settings = settings
        self._job = job
        self._deployment = deployment
        self._holder = holder

    def new_name(self) -> str:
        """Short enough for the names of its pods, and of nothing that was before."""
        base = service_name(self._settings, self._job, "training", "on-demand")
        return f"{base}-{uuid.uuid4().hex[:5]}"

    async def make(self, name: str) -> None:
        owner = await owner_reference(self._kube, self._settings)
        manifest = job_manifest(
            self._settings, self._job, self._deployment, name, self._holder, owner
        )
        namespace = self._settings.namespace
        made = await self._kube.create(JOBS, manifest, namespace)
        await self._kube.create(ADDRESSES, address_manifest(made), namespace)

    async def take_over(self) -> list[JobView]:
        """Make the gang that runs ours, if there is one and it is what we would make; delete what
        else there is of the job's."""
        wanted = shape(self._settings, self._job, self._deployment)
        taken: list[JobView] = []
        for found in await self._found():
            view = read_job(found)
            if taken or view.ended or view.shape != wanted:
                await self.delete(view.name, view.holder)
                continue
            told = {"name": view.name, "annotations": {HOLDER: self._holder}}
            body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": told}
            await self._kube.apply(JOBS, body, self._settings.namespace)
            taken.append(view)
        return taken

    async def delete(self, name: str, holder: str | None = None) -> bool:
        """Unless somebody else has taken it over; whether it is gone."""
        namespace, ours = self._settings.namespace, self._holder if holder is None else holder
        return await delete_held(self._kube, namespace, name, ours, JOBS)

    async def delete_all(self) -> bool:
        """All that are ours; whether there were any."""
        views = [read_job(found) for found in await self._found()]
        ours = [view for view in views if view.holder == self._holder]
        for view in ours:
            await self.delete(view.name)
        return bool(ours)

    async def queue_troubles(self, name: str, view: JobView | None) -> list[Trouble]:
        """Why Kueue does not let a gang begin."""
        if view is not None and not view.suspended:
            return []
        found = await self._kube.get(JOBS, name, self._settings.namespace)
        if found is None:
            return []
        workloads = await self._workloads(found["metadata"]["uid"])
        if not workloads:
            return [NOT_NOTED]
        told = (read_workload(workload) for workload in workloads)
        return [trouble for trouble in told if trouble is not None]

    async def _workloads(self, uid: str) -> list[Object]:
        for kind in WORKLOADS:
            try:
                found, _ = await self._kube.list(kind, self._settings.namespace, {_JOB_UID: uid})
            except ForbiddenError:
                return []
            except UserError:  # a version that this Kueue does not have
                continue
            return found
        return []

    async def _found(self) -> list[Object]:
        items, _ = await self._kube.list(JOBS, self._settings.namespace, self.labels)
        return items
