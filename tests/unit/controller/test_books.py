from __future__ import annotations

import asyncio

import fakeredis
import pytest

from controller.books import SAVE_EVERY_S, Books, keeping
from controller.job_store import JobStore
from controller.ledger import Ledger, Usage
from simulator.clock import run


def ledger_of(held_s: float) -> Ledger:
    ledger = Ledger()
    ledger.started("rollout-1", "rollout", 10.0)
    ledger.phase("rollout-1", "busy", 11.0)
    ledger.stopped("rollout-1", 10.0 + held_s)
    return ledger


def test_a_resumed_run_adds_to_what_the_runs_before_it_spent() -> None:
    first = Books(ledger_of(4.0), {}, start_s=9.0)
    notes = first.notes(20.0)
    second = Books(ledger_of(2.0), notes, start_s=5.0)
    assert first.usage(20.0) == {"rollout": Usage(cold_s=1.0, busy_s=3.0, usd=None)}
    assert second.usage(20.0) == {"rollout": Usage(cold_s=2.0, busy_s=4.0, usd=None)}
    assert (first.wall_s(20.0), second.wall_s(20.0)) == (11.0, 26.0)


def test_a_function_used_in_an_earlier_run_only_is_not_forgotten() -> None:
    notes = {"usage": {"reward": {"busy_s": 2.0, "usd": 0.5}}}
    assert Books(Ledger(), notes, 0.0).usage(1.0) == {"reward": Usage(busy_s=2.0, usd=0.5)}


def test_books_are_saved_now_and_then_and_at_the_end_of_a_failed_run() -> None:
    async def scenario() -> tuple[float, float]:
        journal = JobStore(fakeredis.FakeAsyncRedis(), "job")
        loop = asyncio.get_running_loop()
        books = Books(Ledger(), {}, loop.time())
        with pytest.RaisesGroup(ValueError):
            async with keeping(books, journal):
                await asyncio.sleep(1.5 * SAVE_EVERY_S)
                meanwhile = (await journal.notes())["wall_s"]
                raise ValueError("the run failed")
        return meanwhile, (await journal.notes())["wall_s"]

    assert run(scenario()) == (SAVE_EVERY_S, 1.5 * SAVE_EVERY_S)
