"""What nobody needs any more is removed once in a while, by whichever replica comes to it first."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from functools import partial

from controller.garbage import collect_job
from controller.redis_calls import answer
from controller.service.hosts import Host
from controller.service.records import ENDED_JOBS
from controller.service.removal import LET_GO_S, clear_away, remove_old
from controller.service.service import Service
from rlhfless.errors import CapacityError, NotFoundError, TransientError

FILES_EVERY_S = 24 * 3600.0
JOBS_EVERY_S = 600.0
REMAINS_EVERY_S = 60.0
SWEEP_EVERY_S = 60.0
_log = logging.getLogger(__name__)


async def tidying(service: Service, host: Host) -> None:
    """Until it is cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_often(service.files.sweep, FILES_EVERY_S), name="tidy-files")
        sweep = partial(host.sweep, partial(running_jobs, service))
        group.create_task(_often(sweep, SWEEP_EVERY_S), name="tidy-functions")
        for name, work, every_s in (
            ("jobs", clean_up, JOBS_EVERY_S),
            ("old-jobs", remove_old, JOBS_EVERY_S),
            ("remains", clear_away, REMAINS_EVERY_S),
        ):
            group.create_task(_often(partial(work, service), every_s), name=f"tidy-{name}")


async def running_jobs(service: Service) -> set[str]:
    """Those that some replica drives, or will again: what they have left in a cluster is theirs."""
    records = await service.registry.open_jobs()
    return {record.id for record in records if record.state in ("running", "pausing")}


async def clean_up(service: Service, now: Callable[[], float] = time.time) -> int:
    """Remove the weights, batches and the like that ended jobs worked with; what they made,
    checkpoints and samples, stays. How many jobs that were."""
    cleaned = 0
    for member in sorted(await answer(service.redis.smembers(ENDED_JOBS))):
        tenant, _, job = member.decode().partition(" ")
        try:
            record = await service.registry.get(tenant, job)
        except NotFoundError:  # it was removed meanwhile, and all of it goes
            await answer(service.redis.srem(ENDED_JOBS, member))
            continue
        if now() - record.updated_at < LET_GO_S:
            continue
        await asyncio.to_thread(collect_job, service.objects, job)
        await answer(service.redis.srem(ENDED_JOBS, member))
        cleaned += 1
    return cleaned


def remove_old_logs(folder: str, machine: str, own: str) -> None:
    """Remove what instances wrote for replicas of this machine that were killed; what of it was of
    a job is in the job store. Replicas are named ``machine-pid-...``, this one is ``own``."""
    if not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        found = re.fullmatch(rf"{re.escape(machine)}-([0-9]+)-[0-9a-f]+", name)
        if found is None or name == own:
            continue
        pid = int(found[1])
        if pid == os.getpid() or not _lives(pid):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def _often(work: Callable[[], Awaitable[int]], every_s: float) -> None:
    while True:
        try:
            await work()
        except (TransientError, CapacityError) as error:
            _log.warning("it was not tidied up: %s", error.detail)
        except Exception:  # the boundary of the task: the next time will do
            _log.exception("it was not tidied up")
        await asyncio.sleep(every_s)
