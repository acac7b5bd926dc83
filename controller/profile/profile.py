"""A profile: set functions up as a run does, measure in rounds, fit."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from controller import learning
from controller.calibration import calibrate
from controller.collector import FinishedSample
from controller.deployments import deployments
from controller.dispatch import Dispatcher, RetryPolicy
from controller.execution import load_data
from controller.homes import cannot_make_temporary_folder
from controller.job import Surroundings
from controller.learning import EngineLimits
from controller.ledger import Ledger
from controller.planning import StepPlan
from controller.platforms.local import LocalOptions, LocalPlatform
from controller.profile.calls import Calls
from controller.profile.fits import Fit, fits
from controller.profile.grid import parts, rollout_grid
from controller.timeline import Timeline
from rlhfless.measurements import Measurements
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec
from scaling import cost_model

Progress = Callable[[int, int, str], None]
"""Told (calls made, calls to make, what is measured now)."""
STORED = (1, 4)
"""Prompts of the calls that store, and load, keys and values."""


@dataclass(frozen=True)
class Profile:
    """``instances``: rollout instances that worked side by side."""

    measurements: Measurements
    fits: list[Fit]
    instances: int
    seconds: float


async def profile_job(
    spec: JobSpec,
    *,
    rounds: int = 3,
    instances: int | None = None,
    options: LocalOptions | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure the functions of ``spec`` on this machine.

    ``instances``: rollout instances at work at once; None: as many as the job may have, but no more
    than there are cores where they run on them, one where they run on an accelerator. Instances are
    started anew for each of the ``rounds``. Raises what the functions raise.
    """
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    ledger, timeline = Ledger(), Timeline()
    count = instances or _side_by_side(spec)
    try:
        folder = tempfile.TemporaryDirectory(prefix="rlhfless-profile-")
    except OSError as error:
        raise cannot_make_temporary_folder(error) from error
    with folder as path:
        async with LocalPlatform(
            deployments(spec), ledger=ledger, folder=path, options=options
        ) as platform:
            data = await asyncio.to_thread(load_data, spec, with_evaluation=False)
            job = Surroundings(
                id="profile", spec=spec, data=data, objects=ObjectStore(os.path.join(path, "store"))
            )
            dispatcher = Dispatcher(platform, timeline, random.Random(0), RetryPolicy())
            calls = Calls(job, dispatcher, count)
            await _Rounds(calls, rounds, progress or _silent).run()
        starts = learning.cold_starts(ledger, timeline, float("-inf"), loop.time())
    observations = learning.rollout_observations(calls.stats)
    state = msgspec.structs.replace(
        calls.state,
        costs=cost_model.observe(calls.state.costs, observations, starts),
        engine=learning.engine_limits(calls.stats, EngineLimits()),
    )
    found = calibrate(
        state,
        timeline,
        publish_s=calls.publish_s,
        controller_s=[],
        source=f"rlhfless profile, {rounds} rounds, {count} rollout instances at once",
        model=spec.model.path,
    )
    trained = [
        call for each in state.costs.calls.values() for call in each if call.kind == "training"
    ]
    judged = fits(found, [*observations, *trained], timeline)
    return Profile(found, judged, count, loop.time() - start_s)


class _Rounds:
    """``run`` makes all calls, round after round, each on fresh instances."""

    def __init__(self, calls: Calls, rounds: int, progress: Progress) -> None:
        self._calls = calls
        self._rounds = rounds
        self._progress = progress
        self._done = 0
        self._total = 1
        self._stored: list[list[list[int]]] = []

    async def run(self) -> None:
        await self._restart()
        plan, samples = await self._calls.sample()
        for number in range(self._rounds):
            if number:
                await self._restart()
            steps = self._steps(plan, samples)
            self._total = len(steps) * self._rounds
            self._done = len(steps) * number
            for what, call in steps:
                self._progress(self._done, self._total, what)
                await call()
                self._done += 1
        self._progress(self._total, self._total, "done")

    async def _restart(self) -> None:
        self._progress(self._done, self._total, "starting functions")
        platform, functions = self._calls.dispatcher.platform, self._calls.job.spec.functions()
        for function in functions:
            await platform.scale(function, 0)
        while platform.instances():  # noqa: ASYNC110  (the platform tells nobody)
            await asyncio.sleep(0.02)
        wanted = {f: self._calls.instances if f == "rollout" else 1 for f in functions}
        for function, count in wanted.items():
            await platform.scale(function, count)
            while self._calls.dispatcher.warm(function) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def _steps(
        self, plan: StepPlan, samples: Sequence[FinishedSample]
    ) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """A round: what is measured, and the call that does."""
        calls = self._calls
        spec, sizes = calls.job.spec, sorted(len(p.tokens) for p in calls.job.data.prompts)
        middle, longest = sizes[len(sizes) // 2], sizes[-1]
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        if self._stored:  # by an earlier round, for instances that have gone
            steps += [("loading keys", partial(calls.load, each)) for each in self._stored]
        elif _stores(spec) and self._calls.stats.calls[-1].kv_token_bytes:
            steps += [("storing keys", partial(self._store, middle, n)) for n in STORED]
            steps += [("storing keys", partial(self._store, longest, n)) for n in STORED]
        for point in rollout_grid(spec, middle, longest):
            steps.append(("rollout", partial(calls.rollout, point)))
        for size in parts(len(samples)):
            steps.append(("reward", partial(calls.reward, plan, samples[:size])))
            if spec.needs_reference():
                steps.append(("reference", partial(calls.reference, plan, samples[:size])))
        group = spec.algorithm.group_size
        for size in parts(len(samples) // group):
            train = partial(calls.train, plan, samples[: size * group])
            steps.append(("training", partial(train, overlap=spec.training.overlap)))
        return steps

    async def _store(self, tokens: int, count: int) -> None:
        self._stored.append(await self._calls.store(tokens, count))


def _side_by_side(spec: JobSpec) -> int:
    if spec.rollout.accelerator != "cpu":
        return 1
    return max(1, min(spec.rollout.max_instances, os.cpu_count() or 1))


def _stores(spec: JobSpec) -> bool:
    return spec.scheduling.prefix_cache and spec.scheduling.dedup_prefill


def _silent(done: int, total: int, what: str) -> None:
    pass
