"""What ended jobs leave, and what is kept of it."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import fakeredis

from controller.service.removal import LET_GO_S
from controller.service.service import Service
from controller.service.settings import Settings
from controller.service.tidying import clean_up, remove_old_logs

KINDS = {"weights", "batches", "results", "kv", "checkpoints", "samples"}


def kinds_of(service: Service, job: str) -> set[str]:
    return {kind for kind in KINDS if service.objects.list(f"{kind}/{job}")}


def test_of_ended_jobs_stays_what_they_made(tmp_path: Path) -> None:
    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        settings = Settings(folder=str(tmp_path), store=str(tmp_path / "store"))
        service = Service(redis, settings)
        jobs = [(await service.registry.create("acme", {"name": name})).id for name in "abc"]
        for job in jobs:
            for kind in KINDS:
                service.objects.put(f"{kind}/{job}/part/one", b"data")
        ended, paused, open_ = jobs
        await service.registry.move("acme", ended, "cancelled")
        await service.registry.pause("acme", paused, "by its owner")
        assert await clean_up(service) == 0  # its driver may not have let go of it

        def later() -> float:
            return time.time() + LET_GO_S

        assert await clean_up(service, later) == 1
        assert kinds_of(service, ended) == {"checkpoints", "samples"}
        assert kinds_of(service, paused) == kinds_of(service, open_) == KINDS
        assert await clean_up(service, later) == 0
        await redis.aclose()

    asyncio.run(main())


def test_logs_of_replicas_that_are_gone_go(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own, before = f"here-{os.getpid()}-abc", f"here-{os.getpid()}-def"  # in a container: always 1
    living, gone = f"here-{os.getppid()}-abc", f"here-{ended.pid}-abc"
    names = {own, before, living, gone, f"there-{ended.pid}-abc", "trackers"}
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "reward-1.log").write_text("said")
    remove_old_logs(str(tmp_path), "here", own)
    assert set(os.listdir(tmp_path)) == names - {before, gone}
    remove_old_logs(str(tmp_path / "none"), "here", own)
