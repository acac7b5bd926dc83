"""Where a run's functions are, and what goes with them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.ledger import Ledger
from controller.places import Place, open_platform
from controller.platforms import ray_jobs
from controller.platforms.ray_cluster import RayCluster
from controller.run_folder import RunFolder
from rlhfless.spec import JobSpec
from tests.support.processes import until

SPEC = {
    "model": {"path": "m"},
    "dataset": {"path": "d.jsonl"},
    "rewards": [{"python": "r.py:f"}],
}


def test_a_run_that_is_stopped_while_its_agent_starts_takes_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents: list[str] = []

    async def starts(cluster: RayCluster, address: str) -> None:
        agents.append(cluster.release)
        await asyncio.Event().wait()

    async def remove(cluster: RayCluster) -> None:
        agents.remove(cluster.release)

    monkeypatch.setattr(ray_jobs, "ensure_agent", starts)
    monkeypatch.setattr(RayCluster, "remove_agent", remove)

    async def run() -> None:
        spec = JobSpec.model_validate(SPEC)
        folder = RunFolder(str(tmp_path / "run"))
        folder.create(spec)
        place = Place(platform="ray", ray_address="http://ray:8265")

        async def enter() -> None:
            async with open_platform(place, spec, folder, Ledger()):
                pass

        task = asyncio.create_task(enter())
        await until(lambda: bool(agents))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        folder.close()

    asyncio.run(run())
    assert agents == []
