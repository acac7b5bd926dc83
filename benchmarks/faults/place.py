"""The service under test: replicas on one folder, one Redis, and what lies between them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.faults.disks import Disk
from benchmarks.faults.links import Link
from benchmarks.faults.processes import MARK, ROOT, RedisServer, Replica, ours
from benchmarks.models import QUICKSTART
from rlhfless import AsyncClient

TENANTS = ("north", "south")
STEPS = 4
VARIANTS = 4
"""Jobs of a variant differ in nothing, so what they learn must be the same to the last bit."""
RETRIES = 60
"""A client goes on asking for some minutes."""
SILENCE_S = 8.0
"""A replica that says nothing for so long is given up, and another asked."""

_REWARD = '''"""The share of right characters, after a while: jobs wait more than they compute, as
where functions have accelerators of their own."""

import asyncio


async def characters(prompts, completions, answer, **_):
    await asyncio.sleep({pause_s})
    return [
        sum(a == b for a, b in zip(c, right)) / max(1, len(right))
        for c, right in zip(completions, answer)
    ]
'''


def spec(name: str, variant: int) -> dict[str, Any]:
    """A very small job."""
    return {
        "name": name,
        "seed": variant,
        "model": {"path": "library:faults/model"},
        "dataset": {"path": "library:faults/data/train.jsonl"},
        "rewards": [{"python": "library:faults/rewards.py:characters"}],
        "algorithm": {"group_size": 4, "kl": {"coefficient": 0.05 * (variant % 2)}},
        "rollout": {"max_tokens": 12, "max_instances": 1 + variant // 2},
        "reference": {"tokens_per_microbatch": 1},  # so that two runs agree to the last bit
        "training": {
            "steps": STEPS,
            "prompts_per_step": 2,
            "learning_rate": 1e-3,
            "checkpoint_every": 2,
            "keep_versions": STEPS + 1,
        },
    }


class Place:
    """``async with Place(...) as place``; nothing it started outlives it."""

    def __init__(
        self, folder: Path, *, replicas: int, instances: int, pause_s: float, rng: random.Random
    ) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.tmp = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))  # sockets want short paths
        self._stack = AsyncExitStack()
        self._num_replicas = replicas
        self._instances = instances
        self._rng = rng
        target = folder / "library" / "faults"
        shutil.copytree(QUICKSTART.parent, target)
        (target / "rewards.py").write_text(_REWARD.format(pause_s=pause_s))
        self.replicas: list[Replica] = []
        self.links: list[Link] = []
        self.keys: dict[str, str] = {}

    async def __aenter__(self) -> Place:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for replica in self.replicas:
            replica.kill()
        if hasattr(self, "redis"):
            self.redis.kill()
        for pid in ours(self.mark):
            os.kill(pid, 9)
        await self._stack.aclose()
        shutil.rmtree(self.tmp, ignore_errors=True)

    async def _start(self) -> None:
        self.data_disk = self._stack.enter_context(Disk(self.folder / "data"))
        self.redis_disk = self._stack.enter_context(Disk(self.folder / "redis"))
        kept = {k: v for k, v in os.environ.items() if k != "REDIS_URL"}
        environment = {
            **kept,
            MARK: self.mark,
            "TMPDIR": str(self.tmp),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),  # not the service's to clean
        }
        self.redis = RedisServer(self.redis_disk.folder, environment, self.folder / "redis.log")
        await self.redis.up()
        for tenant in TENANTS:
            self.keys[tenant] = await asyncio.to_thread(self._new_key, tenant)
        words = ["--data", str(self.data_disk.folder), "--library", str(self.folder / "library")]
        words += ["--instances", str(self._instances), "--log-level", "info"]
        for number in range(self._num_replicas):
            link = await self._stack.enter_async_context(Link([self.redis.port]))
            url = f"redis://127.0.0.1:{link.port}/0"
            own = {**environment, "REDIS_URL": url}
            self.links.append(link)
            self.replicas.append(Replica(number, words, own, self.folder))
        await asyncio.gather(*(replica.up() for replica in self.replicas))
        ports = [replica.port for replica in self.replicas]
        front = await self._stack.enter_async_context(Link(ports, self._rng))
        self.url = f"http://127.0.0.1:{front.port}"

    def client(self, tenant: str) -> AsyncClient:
        """Through the balancer, to whichever replica answers."""
        return AsyncClient(self.url, self.keys[tenant], retries=RETRIES, timeout_s=SILENCE_S)

    @property
    def store(self) -> str:
        return str(self.data_disk.folder / "store")

    def _new_key(self, tenant: str) -> str:
        words = ["keys", "create", "--tenant", tenant, "--name", "faults", "--scope", "submit"]
        made = subprocess.run(
            [sys.executable, "-m", "rlhfless.cli.main", *words, "--json"],
            env={**os.environ, "REDIS_URL": self.redis.url},
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        return str(json.loads(made.stdout)["key"])
