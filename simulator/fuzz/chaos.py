"""Instances that die: at any moment, with or without notice, whatever they are at."""

from __future__ import annotations

import asyncio

from simulator.fuzz.world import Run, World

NOTICE_S = 0.5
"""Between the notice and the end of an instance that is preempted."""
TICK_S = 0.2


async def chaos(world: World) -> None:
    """Until the faults are used up."""
    async with asyncio.TaskGroup() as group:
        while world.chance.rate("crash") or world.chance.rate("preempt"):
            await asyncio.sleep(world.chance.seconds(TICK_S))
            for run in world.runs:
                if run.life.ended.is_set():
                    continue
                for instance in run.platform.instances():
                    if world.chance.strikes_in("crash", TICK_S, instance.id, instance.state):
                        run.platform.crash(instance.id)
                    elif world.chance.strikes_in("preempt", TICK_S, instance.id, instance.state):
                        name = f"preempt {instance.id}"
                        group.create_task(_preempt(run, instance.id), name=name)


async def _preempt(run: Run, instance: str) -> None:
    run.platform.preempt(instance)
    await asyncio.sleep(NOTICE_S)
    run.platform.crash(instance)
