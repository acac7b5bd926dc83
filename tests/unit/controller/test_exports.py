"""Which models a job exports, whatever happens to its controllers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from controller.orchestrator import Orchestrator
from rlhfless.checkpoints import Checkpoint, checkpoint_prefix, read_checkpoint
from rlhfless.errors import CapacityError
from rlhfless.messages import AnyFrame, ExportRequest, Request
from rlhfless.objects import ObjectStore
from simulator.clock import run
from tests.support.scripted_platform import Faults, ScriptedPlatform
from tests.support.world import World, make_spec, world

STEPS = 7


def checkpoints(w: World) -> dict[int, Checkpoint]:
    store = ObjectStore(str(w.folder))
    found = {s: read_checkpoint(store, checkpoint_prefix("job", s)) for s in range(STEPS + 1)}
    return {step: made for step, made in found.items() if made is not None}


def exports(w: World) -> list[ExportRequest]:
    return [r for r in w.platform.requests if isinstance(r, ExportRequest)]


def spec_of(every: int, steps: int = STEPS) -> dict[str, dict[str, int]]:
    return {"training": {"checkpoint_every": every, "steps": steps}}


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [1, 2, 3, 4, 5, 6, 7]), (2, [2, 4, 6, 7]), (7, [7]), (50, [7])]
)
def test_every_so_manieth_model_and_the_last_are_checkpoints(
    tmp_path: Path, every: int, expected: list[int]
) -> None:
    w = world(tmp_path, make_spec(**spec_of(every)))

    async def main() -> None:
        await Orchestrator(w.job(), None).run()

    run(main())
    made = checkpoints(w)
    assert list(made) == expected
    assert all((c.step, c.version) == (step, step) for step, c in made.items())
    assert all(c.metrics["step"] == step for step, c in made.items())
    assert [c.final for c in made.values()] == [*[False] * (len(expected) - 1), True]
    assert len(exports(w)) == len(expected)
    told = [e.data["step"] for e in w.events if e.kind == "checkpoint"]
    assert told == expected


def test_with_a_folder_only_the_final_model_is_exported(tmp_path: Path) -> None:
    w = world(tmp_path, make_spec(**spec_of(2)))

    async def main() -> None:
        await Orchestrator(w.job(), "weights").run()

    run(main())
    assert [request.folder for request in exports(w)] == ["weights"]
    assert checkpoints(w) == {}


class _SlowExports(ScriptedPlatform):
    """Whose exports never end, while ``stuck``."""

    stuck = True

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        if isinstance(request, ExportRequest) and self.stuck:
            await asyncio.Event().wait()
        async for frame in super().invoke(request):
            yield frame


def test_a_checkpoint_that_was_interrupted_is_made_by_whoever_goes_on(tmp_path: Path) -> None:
    w = world(tmp_path, make_spec(**spec_of(3)))
    w.platform = _SlowExports(Faults(random.Random(0)))

    async def first() -> None:
        # Steps go on beside the export until the next one's garbage is to be collected.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await Orchestrator(w.job(), None).run()

    async def second() -> None:
        w.platform.stuck = False  # type: ignore[attr-defined]
        await Orchestrator(w.job(), None).run()

    run(first())
    assert checkpoints(w) == {}
    assert sum(e.kind == "step" for e in w.events) == 4
    run(second())
    assert list(checkpoints(w)) == [3, 6, 7]


class _NoRoom(ScriptedPlatform):
    def _unary(self, request: Request) -> AnyFrame:
        if isinstance(request, ExportRequest) and not request.final:
            raise CapacityError("the disk is full")
        return super()._unary(request)


def test_a_checkpoint_that_fails_is_told_and_the_job_goes_on(tmp_path: Path) -> None:
    w = world(tmp_path, make_spec(**spec_of(3)))
    w.platform = _NoRoom(Faults(random.Random(0)))

    async def main() -> None:
        await Orchestrator(w.job(), None).run()

    run(main())
    assert list(checkpoints(w)) == [7]
    notices = [e for e in w.events if e.kind == "notice"]
    assert [e.data["step"] for e in notices] == [3, 6]
    assert "the disk is full" in notices[0].message
