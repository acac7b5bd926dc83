"""One seed: a job is run to its end through everything its case has in store for it."""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from controller.journal import Journal
from rlhfless.errors import CapacityError, InternalError, RlhflessError, TransientError, UserError
from rlhfless.spec import JobSpec
from simulator.clock import Deadlock, Livelock, describe_waiters
from simulator.fuzz import invariants
from simulator.fuzz.chaos import chaos
from simulator.fuzz.jobs import change_spec
from simulator.fuzz.loop import FuzzLoop
from simulator.fuzz.schedule import Case, Fate, make_case
from simulator.fuzz.trace import Trace, Violation
from simulator.fuzz.whims import whims
from simulator.fuzz.world import LOOK_EVERY_S, Run, World
from simulator.memory import MemoryJournal

LONGEST_S = 20_000.0
"""Virtual seconds in which a controller must end: each of these jobs takes less than a few
hundred."""
MOST_CONTROLLERS = 80
LIVES = Fate("lives")


@dataclass(frozen=True)
class Report:
    """What became of a seed. ``failure``: what must never happen and did, None if nothing did;
    ``trace``: its story; ``digest`` of it."""

    seed: int
    failure: str | None
    digest: str
    trace: Trace
    virtual_s: float
    controllers: int
    faults: Counter[str]


def run_seed(seed: int) -> Report:
    return run_case(make_case(seed))


def run_case(case: Case, journal: Journal | None = None) -> Report:
    """Never raises for what it finds."""
    trace = Trace()
    loop = FuzzLoop(random.Random(f"threads {case.seed}"), case.thread_s)
    game = _Game(case, trace, journal or MemoryJournal(case.spec.model_dump_json()))
    failure: str | None = None
    with (
        _quiet(),
        whims(random.Random(f"whims {case.seed}"), case.whims),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        try:
            runner.run(game.play())
        except (Violation, Deadlock, Livelock) as found:
            failure = f"{type(found).__name__}: {found}"
        except Exception as found:  # the harness's boundary: a report says what went wrong
            failure = "".join(traceback.format_exception(found))
    faults = game.world.chance.counts
    return Report(
        case.seed, failure, trace.digest(), trace, loop.time(), len(game.world.runs), faults
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No logs: what fails on purpose is in the trace."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class _Game:
    def __init__(self, case: Case, trace: Trace, journal: Journal) -> None:
        self.world = World(case, journal, trace)
        self._case = case
        self._trace = trace
        self._spec: JobSpec = case.spec
        self._changes = random.Random(f"changes {case.seed}")
        self._unheard: list[str] = []

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unhandled)
        instances_die = loop.create_task(chaos(self.world), name="chaos")
        try:
            await self._controllers()
        finally:
            await _end([instances_die])
        await self._settle()
        self._check_unheard()
        await invariants.check_end(self.world)

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        told = "".join(traceback.format_exception(error)) if error else ""
        self._unheard.append(f"{context['message']}\n{told}")

    def _check_unheard(self) -> None:
        if self._unheard:
            raise Violation(f"an error that nobody took notice of: {self._unheard[0]}")

    # --- controllers ------------------------------------------------------------------------------

    async def _controllers(self) -> None:
        """One after the other until the job is done, some beside others."""
        fates: Iterator[Fate] = iter(self._case.fates)
        while len(self.world.runs) < MOST_CONTROLLERS:
            fate = next(fates, LIVES)
            calm = self.world.chance.left <= 0 and not self._case.spot
            harmless = calm and fate is LIVES and not self._others()
            run = await self._control(fate)
            self._check_unheard()
            if fate.ending == "stale" and not run.life.ended.is_set():
                continue  # its successor begins beside it
            if run.outcome is not None and run.outcome.status == "succeeded":
                return
            if harmless and run.error is not None and not _over_budget(run.error):
                raise Violation(
                    f"controller {run.life.number} ended without a fault: {run.error!r}"
                )
        raise Violation(f"the job is not done after {MOST_CONTROLLERS} controllers")

    def _others(self) -> list[Run]:
        return [run for run in self.world.runs if not run.life.ended.is_set()]

    async def _control(self, fate: Fate) -> Run:
        if self._case.changes and self.world.runs:
            self._spec = change_spec(self._spec, self._changes)
        kill_at = fate.crossing if fate.ending in ("killed", "stale") else 0
        run = self.world.begin(self._spec, kill_at)
        look = asyncio.create_task(self._look(run), name=f"auditor-{run.life.number}")
        limit_s = fate.after_s if fate.ending in ("stopped", "stale") else LONGEST_S
        try:
            async with asyncio.timeout(limit_s):
                await run.life.ended.wait()
        except TimeoutError:
            if fate.ending == "stopped":
                run.life.stop()
                await run.life.ended.wait()
            elif fate.ending != "stale":
                waiters = describe_waiters(asyncio.get_running_loop())
                raise Violation(f"controller {run.life.number} does not end:\n{waiters}") from None
        finally:
            await _end([look])
        await self._bury_the_dead()
        return run

    async def _look(self, run: Run) -> None:
        most = {f: run.spec.function(f).max_instances for f in run.spec.functions()}
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            run.ledger.check_against(run.platform, most)

    async def _bury_the_dead(self) -> None:
        for run in self.world.runs:
            if run.life.ended.is_set() and not run.buried:
                run.buried = True
                self._judge(run)
                await self._bury(run)

    async def _bury(self, run: Run) -> None:
        """After a controller's end: its books, and its instances if it was killed."""
        now_s = asyncio.get_running_loop().time()
        run.ledger.check(now_s)
        if not run.life.alive:
            await asyncio.sleep(self._case.linger_s)
            await run.platform.close()
        now_s = asyncio.get_running_loop().time()
        run.ledger.check(now_s)
        if run.ledger.running or run.platform.instances():
            raise Violation(f"{run.ledger.running} are held after the platform was closed")
        await invariants.check_journal(self.world)

    async def _settle(self) -> None:
        """The job is done: whoever is left dies, and nothing must stay behind."""
        for run in self._others():
            run.life.kill()
            await run.life.ended.wait()
        await self._bury_the_dead()
        await _end([task for run in self.world.runs for task in run.faulty.orphans])
        me = asyncio.current_task()
        left = sorted(t.get_name() for t in asyncio.all_tasks() if t is not me)
        if left:
            waiters = describe_waiters(asyncio.get_running_loop())
            raise Violation(f"tasks are left over: {', '.join(left)}\n{waiters}")
        streams: Any = getattr(asyncio.get_running_loop(), "_asyncgens", ())
        still_open = sorted(
            stream.__qualname__ for stream in streams if stream.ag_frame is not None
        )
        if still_open:
            raise Violation(f"streams are left open: {', '.join(still_open)}")

    def _judge(self, run: Run) -> None:
        """Whether a controller that did not finish the job had a reason."""
        number = run.life.number
        if run.outcome is not None:
            if run.outcome.status == "paused":
                self._trace.note(f"[{number}] PAUSED", run.outcome.reason)
                self._raise_budget(run)
            return
        assert run.error is not None
        for error in _leaves(run.error):
            self._trace.note(f"[{number}] ENDS", type(error).__name__, error)
            if _over_budget(error):
                self._raise_budget(run)
            elif not self._is_allowed(run, error):
                told = "".join(traceback.format_exception(error))
                raise Violation(f"controller {number} ended by\n{told}")

    def _is_allowed(self, run: Run, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):
            return run.life.cancelled
        if isinstance(error, TransientError | CapacityError):
            return True
        if isinstance(error, InternalError) and "times in a row" in error.detail:
            return True
        # One that was taken for dead, or whose predecessor was, may come too late.
        return isinstance(error, RlhflessError) and not self._case.alone

    def _raise_budget(self, run: Run) -> None:
        if run.spec.budget.max_usd is None and run.spec.budget.max_function_seconds is None:
            raise Violation("a budget that nobody set is used up")
        budget = run.spec.budget
        more = {
            name: 3 * value
            for name in ("max_usd", "max_function_seconds")
            if (value := getattr(budget, name)) is not None
        }
        self._spec = self._spec.model_copy(update={"budget": budget.model_copy(update=more)})


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks; whatever else ended one of them is raised."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Exception):  # not that it was cancelled
            raise found


def _over_budget(error: BaseException) -> bool:
    return any(isinstance(e, UserError) and e.param == "budget" for e in _leaves(error))


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
