"""Several platforms as one, each of which runs functions of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import TYPE_CHECKING

from controller.platforms.base import Instance
from controller.platforms.local_logs import LogSlice
from rlhfless.errors import InternalError
from rlhfless.messages import ROUTES, AnyFrame, FunctionName, Request, SteerRequest

if TYPE_CHECKING:
    from controller.service.hosts import JobPlatform


class ByFunction:
    """``parts``: by function, the platform that runs it; who made them closes them in any case."""

    def __init__(self, parts: Mapping[FunctionName, JobPlatform]) -> None:
        self._parts = dict(parts)
        self._all = list(dict.fromkeys(self._parts.values()))

    def invoke(self, request: Request) -> AsyncGenerator[AnyFrame, None]:
        return self._part(ROUTES[type(request)][0]).invoke(request)

    async def steer(self, request: SteerRequest) -> bool:
        """Only calls of rollout take changes; whoever has it is asked."""
        part = self._parts.get("rollout")
        return part is not None and await part.steer(request)

    async def scale(self, function: FunctionName, count: int) -> None:
        await self._part(function).scale(function, count)

    def instances(self) -> tuple[Instance, ...]:
        return tuple(instance for part in self._all for instance in part.instances())

    async def close(self) -> None:
        for part in self._all:
            await part.close()

    def bound(self, function: FunctionName, most: int) -> None:
        self._part(function).bound(function, most)

    def log_slices(self) -> list[LogSlice]:
        return [one for part in self._all for one in part.log_slices()]

    def drop_logs(self, parts: Iterable[LogSlice]) -> None:
        given = list(parts)
        for part in self._all:
            part.drop_logs(given)

    def _part(self, function: FunctionName) -> JobPlatform:
        try:
            return self._parts[function]
        except KeyError:
            raise InternalError(f"the function {function} is not deployed here") from None
