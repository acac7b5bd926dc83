"""What requests say of a rollout's shared prompts, and how they are told apart."""

from pathlib import Path

from controller.requests import RolloutTask, prefill_request, rollout_request
from rlhfless.messages import PrefixUse
from simulator.clock import run
from tests.support.world import world

PROMPT = (1, 2, 3)


def test_a_rollout_call_is_told_what_was_planned_for_its_prompts(tmp_path: Path) -> None:
    async def use(task: RolloutTask) -> PrefixUse | None:
        return rollout_request(world(tmp_path).job(), task, [list(PROMPT)], [], "actor-0").prefix

    for load in (True, False):
        for publish in (True, False):
            task = RolloutTask(0, 0, cuts={PROMPT: [2]}, load=load, publish=publish)
            assert run(use(task)) == PrefixUse(cuts=[[2]], load=load, publish=publish)
    assert run(use(RolloutTask(0, 0))) is None


def test_prefill_calls_for_other_prompts_or_cuts_have_other_ids(tmp_path: Path) -> None:
    """A controller that takes a step over has other samples left and may plan other calls."""

    async def ids() -> list[str]:
        job, task = world(tmp_path).job(), RolloutTask(0, 0)
        return [
            prefill_request(job, task, prompts, cuts, "actor-prefill-0").call.id
            for prompts, cuts in (
                ([PROMPT], [[2]]),
                ([PROMPT], [[1, 2]]),
                ([PROMPT, PROMPT], [[2], [2]]),
                ([(1, 2, 4)], [[2]]),
                ([list(PROMPT)], [(2,)]),
            )
        ]

    found = run(ids())
    assert found[0] == found[-1]
    assert len(set(found)) == 4
