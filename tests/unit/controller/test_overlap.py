"""Training begun in the rollout's shadow: what is sent when, and that no fault of it matters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from controller.collector import FinishedSample, Sample
from controller.dataset import Position, Row
from controller.job import Prompt
from controller.journal import Scores
from controller.overlap import Overlap
from controller.planning import StepPlan
from controller.scoring import ScoredSample
from rlhfless.batches import Batch, decode_batch
from rlhfless.errors import InternalError, RlhflessError, UserError
from rlhfless.messages import GradientsDone, GradientsRequest
from rlhfless.spec import JobSpec
from simulator.clock import run

GROUPS, SIZE = 16, 4
WORTH = 2  # groups
CALL_S = 1.0


def make_spec(overlap: bool = True, **algorithm: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "model": {"path": "tiny"},
            "dataset": {"path": "train.jsonl"},
            "rewards": [{"python": "rewards.py:odd"}],
            "algorithm": {"group_size": SIZE, **algorithm},
            "training": {"prompts_per_step": GROUPS, "overlap": overlap},
        }
    )


def make_plan() -> StepPlan:
    prompts = tuple(Prompt(f"p{g}", Row("", {}, ""), (10 + g, 3)) for g in range(GROUPS))
    return StepPlan(
        step=3,
        prompts=prompts,
        samples=tuple(
            Sample(f"3/{g}/{k}", g, prompts[g].tokens, 0, 64)
            for g in range(GROUPS)
            for k in range(SIZE)
        ),
        position=Position(),
    )


def scored(group: int, k: int, reference: bool = False) -> ScoredSample:
    tokens = list(range(4, 5 + group + k))
    logprobs = np.full(len(tokens), -1.0, "<f4").tobytes()
    return ScoredSample(
        FinishedSample(
            id=f"3/{group}/{k}", tokens=tokens, logprobs=logprobs, reason="stop", versions=[3, 1]
        ),
        Scores(group + k / 10, [group + k / 10]),
        logprobs if reference else None,
    )


def whole(*groups: int) -> list[ScoredSample]:
    return [scored(group, k) for group in groups for k in range(SIZE)]


@dataclass
class Dispatcher:
    """Answers after a second, with how many samples it holds. ``answers``: errors or numbers to
    give instead, in turn."""

    answers: list[RlhflessError | int] = field(default_factory=list)
    requests: list[GradientsRequest] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    busy: bool = False

    async def call(self, request: GradientsRequest, result: type[GradientsDone]) -> GradientsDone:
        assert not self.busy
        self.requests.append(request)
        self.busy = True
        await asyncio.sleep(CALL_S)
        self.busy = False
        self.held.update(request.samples)
        answer = self.answers.pop(0) if self.answers else len(self.held)
        if isinstance(answer, RlhflessError):
            raise answer
        return result(num_samples=answer)

    def groups(self) -> list[list[int]]:
        """Of each call."""
        return [sorted({i // SIZE for i in r.samples}) for r in self.requests]


def overlapped(
    script: Callable[[Overlap], Awaitable[None]],
    dispatcher: Dispatcher | None = None,
    spec: JobSpec | None = None,
) -> Dispatcher:
    """Run ``script`` beside an overlap, which must come to its end."""
    dispatcher = dispatcher or Dispatcher()
    job: Any = SimpleNamespace(
        id="job",
        spec=spec or make_spec(),
        dispatcher=dispatcher,
        objects=SimpleNamespace(url="memory://"),
    )

    async def both() -> None:
        overlap = Overlap(job, make_plan(), 7, 10)
        async with asyncio.TaskGroup() as group:
            group.create_task(overlap.run())
            await script(overlap)

    run(both())
    assert not dispatcher.busy
    return dispatcher


def test_whole_groups_go_as_soon_as_enough_have_come_together() -> None:
    async def script(overlap: Overlap) -> None:
        await overlap.add(whole(5) + whole(2)[:3])
        await asyncio.sleep(5)
        await overlap.add(whole(2)[3:])
        await asyncio.sleep(CALL_S / 2)
        await overlap.add(whole(0, 1, 9))  # while a call is under way
        await asyncio.sleep(5)
        await overlap.add(whole(*rest))

    rest = [g for g in range(GROUPS) if g not in (0, 1, 2, 5, 9)]
    dispatcher = overlapped(script)
    # The last came all at once: nothing is left to hide them in, so the train call has them.
    assert dispatcher.groups() == [[2, 5], [0, 1, 9]]
    request = dispatcher.requests[1]
    assert request.model.version == 7 and request.call.step == 3
    assert request.samples == [*range(8), *range(36, 40)]
    assert request.groups == [g for g in range(GROUPS) for _ in range(SIZE)]


def test_less_waits_for_more_only_as_long_as_a_call_takes() -> None:
    async def script(overlap: Overlap) -> None:
        await overlap.add(whole(0, 1))  # a call until 1 s
        await asyncio.sleep(1.5 * CALL_S)
        await overlap.add(whole(2))  # waits until 2 s for a second group
        await asyncio.sleep(CALL_S / 4)
        assert len(dispatcher.requests) == 1
        await asyncio.sleep(CALL_S / 2)
        assert len(dispatcher.requests) == 2
        await asyncio.sleep(5)
        await overlap.add(whole(3))  # there was time enough for others to come
        await asyncio.sleep(CALL_S / 2)
        assert len(dispatcher.requests) == 3
        await overlap.add(whole(*range(4, GROUPS)))

    dispatcher = Dispatcher()
    assert overlapped(script, dispatcher).groups() == [[0, 1], [2], [3]]


def test_an_instance_that_holds_something_is_kept_through_a_long_tail() -> None:
    """It would be stopped after a minute without a call."""
    times = []

    async def script(overlap: Overlap) -> None:
        await overlap.add(whole(0, 1, 2))
        for _ in range(200):
            await asyncio.sleep(1)
            times.append(len(dispatcher.requests))
        await overlap.add(whole(*range(3, GROUPS)))

    dispatcher = Dispatcher()
    groups = overlapped(script, dispatcher).groups()
    assert groups[0] == [0, 1, 2]
    assert len(groups) > 4 and all(g == [0] for g in groups[1:])  # one it has: nothing to compute
    assert all(times[i] < times[i + 40] for i in range(160))


def test_the_part_is_what_the_batch_of_the_step_will_say_of_it() -> None:
    async def script(overlap: Overlap) -> None:
        await overlap.add([scored(g, k, reference=True) for k in (2, 0, 3, 1) for g in (5, 4)])
        await asyncio.sleep(5)
        await overlap.add(whole(*(g for g in range(GROUPS) if g not in (4, 5))))

    dispatcher = overlapped(script, spec=make_spec(kl={"coefficient": 0.1}))
    (request,) = dispatcher.requests
    part: Batch = decode_batch(request.batch)
    assert request.samples == list(range(16, 24))
    assert part.groups.tolist() == [4] * 4 + [5] * 4
    assert part.response_lengths.tolist() == [5, 6, 7, 8, 6, 7, 8, 9]
    assert part.prompt_tokens.tolist() == [14, 3] * 4 + [15, 3] * 4
    assert part.rewards.tolist() == pytest.approx([4.0, 4.1, 4.2, 4.3, 5.0, 5.1, 5.2, 5.3])
    assert part.reference_logprobs is not None and len(part.reference_logprobs) == 56


def test_samples_told_twice_count_once() -> None:
    async def script(overlap: Overlap) -> None:
        await overlap.add(whole(1)[:2] + whole(2)[:2])
        await overlap.add(whole(1)[:2] + whole(2)[:2])
        await asyncio.sleep(5)
        await overlap.add(whole(*range(GROUPS)))

    assert overlapped(script).groups() == []


def test_everything_scored_before_it_began_is_left_to_the_train_call() -> None:
    async def script(overlap: Overlap) -> None:
        await overlap.add(whole(*range(GROUPS)))

    assert overlapped(script).groups() == []


def test_without_overlap_nothing_is_sent() -> None:
    async def script(overlap: Overlap) -> None:
        await overlap.add(whole(0, 1, 2))
        await asyncio.sleep(5)

    assert overlapped(script, spec=make_spec(overlap=False)).groups() == []


def test_the_train_call_finds_the_instance_free() -> None:
    """``run`` goes on until its call has ended, though the last sample was scored meanwhile."""

    async def script(overlap: Overlap) -> None:
        await overlap.add(whole(0, 1))
        await asyncio.sleep(CALL_S / 2)
        await overlap.add(whole(*range(2, GROUPS)))

    dispatcher = overlapped(script)  # asserts that the call has ended
    assert dispatcher.groups() == [[0, 1]]


async def pairs(overlap: Overlap) -> None:
    """Two groups at a time, each time long enough after the others."""
    for group in range(0, GROUPS, WORTH):
        await overlap.add(whole(group, group + 1))
        await asyncio.sleep(5)


@pytest.mark.parametrize(
    "error", [InternalError("failed 3 times in a row"), UserError("the reward is nan")]
)
def test_an_error_ends_the_overlap_and_not_the_step(error: RlhflessError) -> None:
    assert overlapped(pairs, Dispatcher([8, error])).groups() == [[0, 1], [2, 3]]


def test_what_a_lost_instance_held_is_sent_again() -> None:
    # The third call is answered by a new instance, which holds what came with it and no more.
    groups = overlapped(pairs, Dispatcher([8, 16, 8])).groups()
    assert groups[:4] == [[0, 1], [2, 3], [4, 5], [0, 1, 2, 3, 4, 5]]
    assert groups[4:] == [[6, 7], [8, 9], [10, 11], [12, 13]]


def test_a_version_that_was_made_already_needs_nothing() -> None:
    assert overlapped(pairs, Dispatcher([0])).groups() == [[0, 1]]


def test_a_cancelled_step_cancels_its_call() -> None:
    async def script(overlap: Overlap) -> None:
        await overlap.add(whole(0, 1))
        await asyncio.sleep(CALL_S / 2)
        raise UserError("something else went wrong")

    with pytest.raises(ExceptionGroup) as raised:
        overlapped(script)
    assert raised.group_contains(UserError, match="something else")
