"""What the routes and the driver of a replica share."""

from __future__ import annotations

from redis.asyncio import Redis

from controller.service.events import Events
from controller.service.files import Files
from controller.service.keys import ApiKeys
from controller.service.library import Library
from controller.service.reference_check import References
from controller.service.registry import Registry
from controller.service.settings import Settings
from rlhfless.objects import ObjectStore


class Service:
    """``redis``: open for as long as the service is. Everything else is made from it and the
    settings and keeps nothing, so any number of replicas serve the same jobs."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self.settings = settings
        self.objects = ObjectStore(settings.store)
        self.keys = ApiKeys(redis)
        self.registry = Registry(redis)
        self.events = Events(redis)
        self.library = Library(settings.library)
        self.files = Files(redis, self.objects, self.registry, settings.max_tenant_bytes)
        self.references = References(
            self.files, self.library, self.registry, self.objects, settings.allowed_urls
        )
