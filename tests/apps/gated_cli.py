"""``python -m tests.apps.gated_cli run ...``: the command line with gated functions and a gated
controller (``tests/apps/gated.py``); everything else is the real thing.

Points of the controller, named as calls: ``step-000001/controller/commit``, ``after`` ``begin``
(the step is trained, not yet journaled) and ``result`` (journaled, its metrics not yet in the
folder).
"""

from __future__ import annotations

import asyncio
from typing import Any

import controller.local_run
import controller.places
import controller.platforms.ray_serve
from controller.job_store import JobStore
from controller.journal import StepRecord
from controller.platforms.local import LocalOptions, LocalPlatform
from controller.platforms.ray_serve import RayServePlatform
from rlhfless.cli.main import main
from rlhfless.messages import FUNCTION_NAMES
from tests.apps import gated

APPS = {name: f"tests.apps.gated:{name}" for name in FUNCTION_NAMES}


class GatedPlatform(LocalPlatform):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, options=LocalOptions(apps=APPS), **options)


class GatedRay(RayServePlatform):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, apps=APPS, **options)


async def _pass(call: str, point: str) -> None:
    for name, _ in gated.matching(call, point):
        while not gated.is_open(name):  # noqa: ASYNC110  (a file of another process)
            await asyncio.sleep(gated.POLL_S)


class GatedStore(JobStore):
    async def commit(self, record: StepRecord, policy_state: bytes, **notes: Any) -> None:
        call = f"step-{record.step:06d}/controller/commit"
        await _pass(call, "begin")
        await super().commit(record, policy_state, **notes)
        await _pass(call, "result")


if __name__ == "__main__":
    controller.places.LocalPlatform = GatedPlatform  # type: ignore[misc]
    controller.platforms.ray_serve.RayServePlatform = GatedRay  # type: ignore[misc]
    controller.local_run.JobStore = GatedStore  # type: ignore[misc]
    main()
