"""What the routes and the driver of a replica share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from redis.asyncio import Redis

from controller.service.audit import Audit
from controller.service.checkpoints import Checkpoints
from controller.service.events import Events
from controller.service.fanout import Fanout
from controller.service.files import Files
from controller.service.guard import Guard
from controller.service.inputs import Inputs
from controller.service.keys import ApiKeys
from controller.service.library import Library
from controller.service.logs import Logs
from controller.service.metrics import ServiceMetrics
from controller.service.once import Once
from controller.service.outputs import Outputs
from controller.service.reads import Reads
from controller.service.reference_check import References
from controller.service.registry import Registry
from controller.service.sample_reader import Samples
from controller.service.settings import Settings
from controller.service.shares import Shares
from controller.service.tenants import Tenants
from controller.service.timeline_reader import Timelines
from rlhfless import rest
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec

Estimator = Callable[[JobSpec, str | None], rest.Estimate]


class Service:
    """``redis``: open for as long as the service is. Everything else is made from it and the
    settings and keeps nothing, so any number of replicas serve the same jobs."""

    def __init__(
        self, redis: Redis, settings: Settings, estimator: Estimator | None = None
    ) -> None:
        """``estimator``: what a job would take on a cluster (None: the usual one), asked in a
        thread; without one there are no estimates."""
        self.estimator = estimator
        self.redis = redis
        self.settings = settings
        self.metrics = ServiceMetrics()
        self.objects = ObjectStore(settings.store)
        self.keys = ApiKeys(redis)
        self.guard = Guard(lambda: asyncio.get_running_loop().time())
        self.tenants = Tenants(redis, settings.default_limits)
        self.once = Once(redis)
        self.audit = Audit(redis)
        self.registry = Registry(redis)
        self.events = Events(redis)
        self.fanout = Fanout(self.events)
        reads = Reads()
        self.outputs = Outputs(redis)
        self.timelines = Timelines(redis)
        self.logs = Logs(redis)
        self.samples = Samples(self.objects, reads)
        self.checkpoints = Checkpoints(self.objects, reads)
        self.shares = Shares(redis, settings.instances, settings.patience_instance_s)
        self.library = Library(settings.library)
        self.files = Files(redis, self.objects, self.registry, settings.max_tenant_bytes)
        self.references = References(
            self.files, self.library, self.registry, self.objects, settings.allowed_urls
        )
        self.inputs = Inputs(settings, self.files, self.library, self.references, self.objects)
        self.closing = False
        """The replica was told to end: streams end by themselves, and go on at another."""
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Something was asked of this replica that its driver should look at."""
        self._changed.set()

    async def until_changed(self, wait_s: float) -> None:
        """Returns when something has changed since the last time, or after ``wait_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        self._changed.clear()
