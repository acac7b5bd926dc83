"""Lives of simulated instances where the fault simulation found them wrong."""

from __future__ import annotations

import asyncio
import random

import pytest

from controller.dataset import Row
from controller.deployments import deployments
from controller.job import Prompt
from controller.ledger import Ledger
from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import CallInfo, RewardDone, RewardRequest
from rlhfless.spec import JobSpec
from simulator.clock import run
from simulator.fuzz.jobs import SHAPE, FuzzLengths, make_fuzz_cluster, make_measurements
from simulator.memory import MemoryObjects
from simulator.platform import SimulatedPlatform
from simulator.platform.costs import Costs
from simulator.platform.lengths import Responses
from simulator.scenario import Scenario

SPEC = JobSpec.model_validate(
    {
        "model": {"path": "tiny"},
        "dataset": {"path": "train.jsonl"},
        "rewards": [{"python": "rewards.py:odd"}],
    }
)


def make_platform() -> SimulatedPlatform:
    cluster = make_fuzz_cluster(4, "exclusive", 0.0, (0.0, 1.0))
    prompts = (Prompt("p", Row("p", {}, "p"), (1, 2)),)
    lengths = FuzzLengths(0, 64, 4)
    measured = make_measurements(random.Random(0), 0.01)
    scenario = Scenario(prompts, (), lengths, SHAPE, measured)
    return SimulatedPlatform(
        deployments(SPEC),
        cluster,
        Costs(SPEC, cluster, scenario),
        Responses(lengths, prompts, 1),
        MemoryObjects(),
        Ledger(),
    )


def reward_request(name: str) -> RewardRequest:
    return RewardRequest(
        call=CallInfo(id=name, job="job", step=0, deadline_s=60.0, store="memory:"),
        functions=[],
        sample_ids=["a"],
        prompts=["p"],
        completions=["c"],
        completion_ids=[[1]],
    )


async def call(platform: SimulatedPlatform, name: str) -> bool:
    return [isinstance(f, RewardDone) async for f in platform.invoke(reward_request(name))][-1]


def test_an_instance_that_drains_still_holds_its_place() -> None:
    async def main() -> None:
        platform = make_platform()
        first = asyncio.create_task(call(platform, "first"))
        while not any(each.state == "busy" for each in platform.instances()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        [draining] = platform.instances()
        platform.preempt(draining.id)
        await platform.scale("reward", 1)
        assert platform.instances() == (draining,)
        assert await first  # it ends what it has begun
        assert platform.instances() == ()
        assert await call(platform, "second")
        [other] = platform.instances()
        assert other.id != draining.id
        await platform.close()

    run(main())


def test_an_instance_that_crashes_takes_its_call_with_it() -> None:
    async def main() -> None:
        platform = make_platform()
        first = asyncio.create_task(call(platform, "first"))
        while not any(each.state == "busy" for each in platform.instances()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        [instance] = platform.instances()
        platform.crash(instance.id)
        assert platform.instances() == ()
        await asyncio.wait([first])
        assert isinstance(first.exception(), TransientError)
        await platform.close()

    run(main())


def test_two_calls_of_an_instance_sleep_each_for_itself() -> None:
    async def main() -> None:
        platform = make_platform()
        assert await call(platform, "first")
        [slots] = [each for each in platform._slots.values() if each.instances]
        [instance] = slots.instances.values()
        woken: list[float] = []

        async def sleep(seconds: float) -> None:
            await instance.sleep_until(asyncio.get_running_loop().time() + seconds)
            woken.append(seconds)

        await asyncio.gather(sleep(2.0), sleep(1.0), sleep(3.0))
        assert woken == [1.0, 2.0, 3.0]
        await platform.close()

    run(main())


def test_a_function_that_is_not_deployed_is_no_key_error() -> None:
    async def main() -> None:
        platform = make_platform()
        del platform._slots["reward"]
        with pytest.raises(InternalError, match="reward is not deployed"):
            await call(platform, "first")
        await platform.close()

    run(main())


def test_what_goes_wrong_in_a_life_is_told_to_those_who_wait_for_it() -> None:
    async def main() -> None:
        platform = make_platform()

        def broken(*_: object) -> float:
            raise ZeroDivisionError("a cost model's defect")

        platform._costs.start_s = broken  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            await call(platform, "first")
        with pytest.raises(ZeroDivisionError):
            await platform.close()

    run(main())
