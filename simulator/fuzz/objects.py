"""The object store with faults before it, as one controller sees it."""

from __future__ import annotations

from rlhfless.errors import CapacityError, TransientError
from rlhfless.objects import ObjectInfo, ObjectStore
from simulator.fuzz.chance import Chance
from simulator.fuzz.life import Life


class FuzzedObjects(ObjectStore):
    """``inner`` is shared with functions and other controllers."""

    def __init__(self, inner: ObjectStore, life: Life, chance: Chance) -> None:
        self.url = inner.url
        self._inner = inner
        self._life = life
        self._chance = chance

    def path(self, name: str) -> str:
        return self._inner.path(name)

    def local_path(self, name: str) -> str | None:
        return self._inner.local_path(name)

    def put(self, name: str, data: bytes, *, durable: bool = False) -> None:
        self._before("put", name)
        self._inner.put(name, data, durable=durable)
        self._after("put", name)

    def create(self, name: str, data: bytes) -> bool:
        self._before("create", name)
        created = self._inner.create(name, data)
        self._after("create", name)
        return created

    def sync(self, name: str) -> None:
        self._before("sync", name)
        self._inner.sync(name)

    def get(self, name: str) -> bytes:
        self._before("get", name)
        return self._inner.get(name)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        self._before("get_range", name)
        return self._inner.get_range(name, start, end)

    def exists(self, name: str) -> bool:
        self._before("exists", name)
        return self._inner.exists(name)

    def list(self, prefix: str, *, unfinished: bool = False) -> list[str]:
        self._before("list", prefix)
        return self._inner.list(prefix, unfinished=unfinished)

    def infos(self, prefix: str) -> tuple[ObjectInfo, ...]:
        self._before("infos", prefix)
        return self._inner.infos(prefix)

    def touch(self, name: str) -> None:
        self._before("touch", name)
        self._inner.touch(name)

    def delete(self, name: str) -> None:
        self._before("delete", name)
        self._inner.delete(name)
        self._after("delete", name)

    def _before(self, operation: str, name: str) -> None:
        self._life.cross(f"objects.{operation}", name)
        if self._chance.strikes("objects_lost", operation, name):
            raise TransientError(f"cannot {operation} {name}: the network is down")
        if self._chance.strikes("objects_full", operation, name):
            raise CapacityError(f"cannot {operation} {name}: no space left")

    def _after(self, operation: str, name: str) -> None:
        if self._chance.strikes("objects_unheard", operation, name):
            raise TransientError(f"cannot {operation} {name}: the connection broke")
        self._life.cross(f"objects.{operation} done")
