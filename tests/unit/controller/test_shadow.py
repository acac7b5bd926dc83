import asyncio

import pytest

from controller.shadow import Shadow
from rlhfless.errors import UserError
from simulator.clock import run


class Scorer:
    """Takes ``seconds`` for a batch and remembers what it got, and when."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.batches: list[tuple[float, list[str]]] = []

    async def __call__(self, ids: object) -> None:
        assert isinstance(ids, list)
        self.batches.append((asyncio.get_running_loop().time(), ids))
        await asyncio.sleep(self.seconds)


async def drive(shadow: Shadow, arrivals: list[tuple[float, list[str]]]) -> float:
    async with asyncio.TaskGroup() as group:
        group.create_task(shadow.run())
        for pause_s, ids in arrivals:
            await asyncio.sleep(pause_s)
            await shadow.add(ids)
        await shadow.close()
    return asyncio.get_running_loop().time()


def test_scores_while_more_is_to_come_and_the_rest_at_the_end() -> None:
    scorer = Scorer(seconds=1.0)
    end_s = run(
        drive(
            Shadow(scorer, min_batch=2, workers=1),
            [(1, ["a"]), (1, ["b"]), (5, ["c"]), (5, ["d", "e", "f"]), (0, ["g"])],
        )
    )
    # c alone is not worth a call, so it goes with d, e, f; g comes while those are scored.
    assert scorer.batches == [(2, ["a", "b"]), (12, ["c", "d", "e", "f"]), (13, ["g"])]
    assert end_s == 14


def test_workers_share_what_is_left() -> None:
    scorer = Scorer(seconds=1.0)
    run(drive(Shadow(scorer, min_batch=2, workers=2), [(0, list("abcdefgh"))]))
    assert sorted(i for _, ids in scorer.batches for i in ids) == list("abcdefgh")


def test_nothing_to_score() -> None:
    scorer = Scorer(seconds=1.0)
    assert run(drive(Shadow(scorer, min_batch=4, workers=3), [])) == 0
    assert scorer.batches == []


def test_an_error_of_the_score_ends_it() -> None:
    async def fail(ids: object) -> None:
        raise UserError("no such column")

    with pytest.raises(ExceptionGroup) as raised:
        run(drive(Shadow(fail, min_batch=1, workers=2), [(0, ["a"]), (1, ["b"])]))
    assert raised.group_contains(UserError, match="no such column")


def test_work_that_waits_for_the_end_is_shared_by_all_workers() -> None:
    scorer = Scorer(seconds=1.0)
    shadow = Shadow(scorer, min_batch=2, workers=4, early=False)
    assert run(drive(shadow, [(0, list("abcd")), (5, list("efgh"))])) == 6
    assert scorer.batches == [(5, list(pair)) for pair in ("ab", "cd", "ef", "gh")]
