"""Whatever platforms on one host do to each other, every second of every process is in exactly one
ledger, no call is lost, and nobody holds more than its bound or runs on another's instance."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.ledger import Ledger, Span
from controller.platforms.base import Deployment
from controller.platforms.local import LocalPlatform
from rlhfless.errors import RlhflessError
from simulator import clock
from tests.support.shared_host import FakeHost, Life, call, guest

NUM_PLATFORMS = 3
MOST = 3


@dataclass(frozen=True)
class Act:
    """``number``: of calls, instances or the bound. ``after_s``: to wait before it."""

    kind: Literal["call", "scale", "bound", "kill", "preempt", "cancel", "close"]
    platform: int
    number: int
    after_s: float


ACTS = st.lists(
    st.builds(
        Act,
        st.sampled_from(["call", "call", "call", "scale", "bound", "kill", "preempt", "cancel"]),
        st.integers(0, NUM_PLATFORMS - 1),
        st.integers(0, MOST),
        st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0, 2.0]),
    ),
    max_size=25,
)
CLOSES = st.lists(
    st.builds(Act, st.just("close"), st.integers(0, 1), st.just(0), st.sampled_from([0.0, 0.3])),
    max_size=1,
)


class World:
    def __init__(self, folder: Path) -> None:
        self.host = FakeHost(folder)
        self.ledgers = [Ledger() for _ in range(NUM_PLATFORMS)]
        deployment = Deployment("rollout", max_instances=MOST, idle_timeout_s=3.0)
        self.platforms = [guest(self.host, deployment, ledger=ledger) for ledger in self.ledgers]
        self.closed: set[int] = set()
        self.calls: dict[int, list[asyncio.Task[bool]]] = defaultdict(list)

    async def act(self, act: Act) -> None:
        platform = self.platforms[act.platform]
        match act.kind:
            case "call":
                self.calls[act.platform] += [
                    asyncio.create_task(_answered(platform)) for _ in range(act.number)
                ]
            case "scale":
                await platform.scale("rollout", act.number)
            case "bound":
                platform.bound("rollout", act.number)
            case "kill":
                for instance in platform.instances()[: act.number]:
                    if instance.id in self.host.launched.processes:
                        self.host.launched.kill(instance.id)
            case "preempt":
                for instance in platform.instances()[: act.number]:
                    platform.preempt(instance.id)
            case "cancel":
                for task in self.calls[act.platform][-act.number :]:
                    task.cancel()
            case "close":
                self.closed.add(act.platform)
                await platform.close()

    def check_owners(self) -> None:
        owners: dict[str, LocalPlatform] = {}
        for platform in self.platforms:
            pool = platform._pools["rollout"]
            staying = [i for i in pool.instances.values() if not (i.stopping or i.leaving)]
            assert len(staying) <= pool.limit
            for name, instance in pool.instances.items():
                assert owners.setdefault(name, platform) is platform, f"{name} has two owners"
                assert instance.deployment is pool.deployment


async def _answered(platform: LocalPlatform) -> bool:
    """Whether it was answered; an error of our families is one, too."""
    try:
        await call(platform, 0.4)
    except RlhflessError:
        return False
    return True


def check_tiled(lives: list[Life], spans: list[Span]) -> None:
    """The spans of each process follow each other from its first to its last moment."""
    by_instance: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_instance[span.instance].append(span)
    for life in lives:
        assert life.ended_s is not None, f"{life.instance} outlived its host"
        at_s = life.began_s
        for span in sorted(by_instance.pop(life.instance, []), key=lambda s: s.start_s):
            assert span.start_s == at_s, f"{life.instance}: {span} begins not at {at_s}"
            at_s = span.end_s
        assert at_s == life.ended_s
    assert not by_instance


@settings(max_examples=100, deadline=None)
@given(acts=ACTS, closes=CLOSES)
def test_every_second_is_booked_once(acts: list[Act], closes: list[Act]) -> None:
    async def run(folder: Path) -> None:
        world = World(folder)
        async with world.host:
            for act in (*acts, *closes):
                await asyncio.sleep(act.after_s)
                await world.act(act)
                world.check_owners()
            for index, platform in enumerate(world.platforms):
                if index not in world.closed:
                    platform.bound("rollout", MOST)
            tasks = [task for tasks in world.calls.values() for task in tasks]
            await asyncio.gather(*tasks, return_exceptions=True)  # none hangs
            world.check_owners()
            await asyncio.sleep(10)  # past every time-out
            assert world.host.instances() == ()
        check_tiled(
            world.host.launched.lives, [s for ledger in world.ledgers for s in ledger.spans]
        )

    with tempfile.TemporaryDirectory(prefix="t") as folder:
        clock.run(run(Path(folder)))
