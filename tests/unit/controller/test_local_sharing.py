"""Platforms of one host on virtual time: who gets whose instance, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local import LocalPlatform
from controller.platforms.local_sharing import PROMISE_S, REST_S
from rlhfless.errors import CapacityError, TransientError
from simulator import clock
from tests.support.processes import rollout
from tests.support.shared_host import COLD_S, FakeHost, call, guest, ids


def now() -> float:
    return asyncio.get_running_loop().time()


async def warmed(platform: LocalPlatform, count: int = 1) -> None:
    """Have instances that served their last call a good while ago."""
    await asyncio.gather(*(call(platform) for _ in range(count)))
    await asyncio.sleep(2 * REST_S)


def test_a_sibling_of_the_kind_gets_an_idle_instance_instead_of_a_cold_start(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        first_books, second_books = Ledger(), Ledger()
        async with FakeHost(tmp_path) as host:
            first, second = guest(host, ledger=first_books), guest(host, ledger=second_books)
            await warmed(first)
            asked_s = now()
            await call(second)
            assert now() == asked_s + 0.5
            assert (ids(first), ids(second)) == ([], ["rollout-1"])
            assert (host.num_started, host.exchange.num_adopted) == (1, 1)
        books = first_books.total(now()), second_books.total(now())
        assert (books[0].cold_s, books[0].busy_s) == (COLD_S, 0.5)
        assert (books[1].cold_s, books[1].busy_s) == (0.0, 0.5)
        assert sum(b.held_s for b in books) == host.launched.lives[0].held_s(now())

    clock.run(run())


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        (Deployment("rollout"), Deployment("rollout"), ("a", "b")),
        (Deployment("rollout"), Deployment("rollout"), (None, None)),
        (Deployment("rollout"), Deployment("rollout", threads=2), ("a", "a")),
        (Deployment("rollout", concurrency=2), Deployment("rollout"), ("a", "a")),
        (Deployment("rollout", accelerator="A100"), Deployment("rollout"), ("a", "a")),
    ],
    ids=["other kind", "no kind", "threads", "concurrency", "accelerator"],
)
def test_what_is_not_alike_is_not_exchanged(
    tmp_path: Path,
    first: Deployment,
    second: Deployment,
    kinds: tuple[str | None, str | None],
) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host, first, kind=kinds[0]), guest(host, second, kind=kinds[1])
            await warmed(one)
            await call(other)
            assert (ids(one), ids(other)) == (["rollout-1"], ["rollout-2"])

    clock.run(run())


def test_other_prices_maxima_and_time_outs_do_not_matter(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one = guest(host, Deployment("rollout", max_instances=3, idle_timeout_s=1000.0))
            other = guest(host, Deployment("rollout", idle_timeout_s=5.0, price_usd_per_hour=1.0))
            await warmed(one)
            await call(other)
            assert ids(other) == ["rollout-1"]
            await asyncio.sleep(6)  # its new owner's time-out
            assert host.instances() == ()

    clock.run(run())


def test_an_instance_that_served_just_now_stays(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            await call(one)
            await asyncio.sleep(REST_S / 2)
            await call(other)
            assert (ids(one), ids(other)) == (["rollout-1"], ["rollout-2"])

    clock.run(run())


def test_what_scale_has_warmed_stays_for_who_asked_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other, third = guest(host), guest(host), guest(host)
            await one.scale("rollout", 1)
            await asyncio.sleep(COLD_S + PROMISE_S / 2)
            await one.scale("rollout", 1)
            await asyncio.sleep(PROMISE_S * 0.9)
            await call(other)
            assert (ids(one), ids(other)) == (["rollout-1"], ["rollout-2"])
            await call(third)  # nobody used it for so long
            assert ids(third) == ["rollout-1"]

    clock.run(run())


def test_what_is_scaled_down_goes_to_who_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            await one.scale("rollout", 1)
            await asyncio.sleep(COLD_S + 0.1)
            waiting = asyncio.create_task(call(other))  # starts one of its own
            await asyncio.sleep(0.1)
            asked_s = now()
            await one.scale("rollout", 0)
            await waiting
            assert now() == asked_s + 0.5
            assert ids(one) == []
            assert ids(other) == ["rollout-2", "rollout-1"]

    clock.run(run())


def test_what_is_scaled_down_while_nobody_waits_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            await warmed(one)
            await one.scale("rollout", 0)
            assert ids(one, "stopping") == ["rollout-1"]
            await call(other)
            assert ids(other) == ["rollout-2"]

    clock.run(run())


def test_a_platform_that_closes_leaves_its_instances_to_who_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            await one.scale("rollout", 2)
            await asyncio.sleep(COLD_S + 0.1)
            waiting = asyncio.create_task(call(other))
            await asyncio.sleep(0.1)
            asked_s = now()
            await one.close()
            await waiting
            assert now() == asked_s + 0.5
            assert one.instances() == ()
            assert len(ids(other)) == 2  # its own, and one of the two
            assert len(host.instances()) == 2

    clock.run(run())


def test_an_owner_with_calls_waiting_keeps_what_it_has(tmp_path: Path) -> None:
    """Its instance refuses for a moment, so it is idle though a call waits."""

    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host, Deployment("rollout")), guest(host)
            await warmed(one)
            instance = one._pools["rollout"].instances["rollout-1"]
            instance.paused = True
            waiting = asyncio.create_task(call(one))
            await asyncio.sleep(0)
            await call(other)
            assert ids(other) == ["rollout-2"]
            instance.paused = False
            one._serve(one._pools["rollout"])
            await waiting

    clock.run(run())


def test_an_instance_whose_call_was_broken_off_is_not_handed_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            frames = one.invoke(rollout("x:9.99"))
            await anext(frames)
            await frames.aclose()
            await asyncio.sleep(2 * REST_S)
            await call(other)
            assert (ids(one), ids(other)) == (["rollout-1"], ["rollout-2"])

    clock.run(run())


def test_the_one_idle_longest_changes_hands(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            await warmed(one, 2)
            await call(one)
            await asyncio.sleep(2 * REST_S)
            (used_last,) = [
                i.id
                for i in one._pools["rollout"].instances.values()
                if i.last_used_s + 2 * REST_S == now()
            ]
            await call(other)
            assert ids(one) == [used_last]

    clock.run(run())


def test_an_instance_goes_there_and_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            for platform in (one, other, one, other):
                await warmed(platform)
                assert ids(platform) == ["rollout-1"]
            assert host.num_started == 1
            assert [part.instance for part in other.log_slices()] == ["rollout-1"] * 2

    clock.run(run())


def test_two_busy_platforms_end_with_their_own_instances(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:

            async def work(platform: LocalPlatform) -> None:
                for _ in range(20):
                    await call(platform)
                    await asyncio.sleep(1.5 * REST_S)

            await asyncio.gather(work(guest(host)), work(guest(host)))
            assert (host.num_started, host.exchange.num_adopted) == (2, 0)

    clock.run(run())


def test_an_adopted_instance_that_dies_fails_its_new_owners_call_only(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            await warmed(one)
            broken = asyncio.create_task(call(other, 5.0))
            await asyncio.sleep(1)
            await call(one)
            host.launched.kill("rollout-1")
            with pytest.raises(TransientError, match="rollout-1 died"):
                await broken
            await asyncio.sleep(0.1)
            assert (ids(one), ids(other)) == (["rollout-2"], [])

    clock.run(run())


@pytest.mark.parametrize("first", ["less", "more"])
def test_what_one_is_bound_to_lose_another_gets_in_the_same_breath(
    tmp_path: Path, first: str
) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            other.bound("rollout", 0)
            await one.scale("rollout", 2)
            await asyncio.sleep(COLD_S + 0.1)
            waiting = asyncio.create_task(call(other))
            await asyncio.sleep(1)
            changes = [lambda: one.bound("rollout", 1), lambda: other.bound("rollout", 1)]
            for change in changes if first == "less" else reversed(changes):
                change()
            await waiting
            assert len(ids(one)) == len(ids(other)) == 1
            assert host.num_started == 2

    clock.run(run())


def test_a_bound_lets_idle_instances_go_and_holds_calls_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one = guest(host, Deployment("rollout", max_instances=4), kind=None)
            await one.scale("rollout", 4)
            await asyncio.sleep(COLD_S + 0.1)
            one.bound("rollout", 2)
            await asyncio.sleep(0.1)
            assert len(ids(one, "idle")) == 2
            began_s = now()
            await asyncio.gather(*(call(one) for _ in range(4)))
            assert now() == began_s + 1.0  # two at a time
            await one.scale("rollout", 4)
            assert len(ids(one)) == 2
            one.bound("rollout", 9)
            await asyncio.sleep(0)
            assert len(ids(one)) == 4  # what scale was promised, now that there is room
            assert host.num_started == 6

    clock.run(run())


def test_a_bound_lets_a_busy_instance_end_its_call_and_gives_it_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one = guest(host)
            calls = [asyncio.create_task(call(one, 1.0)) for _ in range(4)]
            await asyncio.sleep(COLD_S + 0.5)
            one.bound("rollout", 1)
            await asyncio.sleep(0.4)
            assert len(ids(one, "busy")) == 2
            await asyncio.sleep(0.2)
            assert len(ids(one, "busy")) == 1
            await asyncio.gather(*calls)
            assert len(ids(one)) == 1
            assert host.num_started == 2

    clock.run(run())


def test_who_was_to_leave_stays_when_another_dies(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one = guest(host)
            calls = [asyncio.create_task(call(one, 1.0)) for _ in range(3)]
            await asyncio.sleep(COLD_S + 0.5)
            one.bound("rollout", 1)
            (stays,) = [i.id for i in one._pools["rollout"].staying]
            host.launched.kill(stays)
            await asyncio.gather(*calls, return_exceptions=True)
            assert len(ids(one)) == 1
            assert host.num_started == 2

    clock.run(run())


def test_a_bound_of_none_stops_all_and_calls_wait_for_a_higher_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one = guest(host)
            first = asyncio.create_task(call(one))
            await asyncio.sleep(COLD_S / 2)
            one.bound("rollout", 0)  # while the instance still starts: it need not
            await asyncio.sleep(30)
            assert ids(one) == []
            assert not first.done()
            one.bound("rollout", 1)
            began_s = now()
            await first
            assert now() == began_s + COLD_S + 0.5

    clock.run(run())


def test_closing_the_host_closes_its_platforms(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host)
            await one.scale("rollout", 1)
            broken = asyncio.create_task(call(other, 5.0))
            await asyncio.sleep(COLD_S + 1)
        with pytest.raises(TransientError):
            await broken
        assert host.instances() == ()
        for platform in (one, other):
            with pytest.raises(CapacityError, match="closing"):
                await call(platform)
        assert all(life.ended_s is not None for life in host.launched.lives)

    clock.run(run())


def test_stats_count_all_platforms(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeHost(tmp_path) as host:
            one, other = guest(host), guest(host, Deployment("training"))
            await other.scale("training", 1)
            busy = asyncio.create_task(call(one, 1.0))
            await asyncio.sleep(COLD_S + 0.5)
            await one.scale("rollout", 2)
            assert host.stats() == {
                ("rollout", "busy"): 1,
                ("rollout", "cold"): 1,
                ("training", "idle"): 1,
            }
            await busy

    clock.run(run())
