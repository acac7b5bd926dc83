import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import fakeredis
import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from controller.collector import FinishedSample
from controller.fencing import Fence, LostLeaseError, fence_key
from controller.job_store import JobStore
from controller.journal import Scores, StepRecord
from controller.ledger import Usage
from controller.service.events import Events, JobEvent
from rlhfless.errors import ConflictError, InternalError
from rlhfless.messages import FunctionName

SAMPLE = FinishedSample(
    id="0/0/0", tokens=[4, 5], logprobs=b"\0" * 8, reason="stop", versions=[0, 2]
)


def with_store(test: Callable[[JobStore, JobStore], Awaitable[None]]) -> None:
    """Run a test on two stores of one job: two controllers, or one before and after a crash."""

    async def main() -> None:
        server = fakeredis.FakeServer()
        clients = [fakeredis.FakeAsyncRedis(server=server) for _ in range(2)]
        await test(JobStore(clients[0], "job"), JobStore(clients[1], "job"))
        for client in clients:
            await client.aclose()

    asyncio.run(main())


def record(step: int, **metrics: float) -> StepRecord:
    return StepRecord(
        step=step, version=step + 1, metrics=metrics, position={"epoch": 0, "index": 4}
    )


def test_a_job_id_is_taken_once() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        assert not await first.exists()
        await first.create("spec")
        assert await second.exists()
        with pytest.raises(ConflictError):
            await second.create("other")
        assert (await second.notes())["spec"] == "spec"

    with_store(test)


def test_an_open_steps_work_survives_its_controller() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        await first.add_samples(0, [SAMPLE])
        await first.add_scores(0, {SAMPLE.id: Scores(0.5, [1.0, None])})
        await first.add_reference(0, {SAMPLE.id: b"\1" * 8})
        journal = await second.step_journal(0)
        assert journal.samples == {SAMPLE.id: SAMPLE}
        assert journal.scores == {SAMPLE.id: Scores(0.5, [1.0, None])}
        assert journal.reference == {SAMPLE.id: b"\1" * 8}
        assert (await second.step_journal(1)).samples == {}

    with_store(test)


def test_a_commit_folds_the_journal_and_can_be_repeated() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        await first.add_samples(0, [SAMPLE])
        await first.commit(record(0, reward=1.0), b"state")
        await second.commit(record(0, reward=2.0), b"other")
        assert await second.records() == [record(0, reward=1.0)]
        assert await second.policy_state() == b"state"
        assert len(await second.records()) == 1
        assert (await second.step_journal(0)).samples == {}

    with_store(test)


def test_commits_are_ordered() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        with pytest.raises(InternalError, match="cannot be committed"):
            await first.commit(record(1), b"")
        for step in range(12):
            await first.commit(record(step), b"")
        assert [r.step for r in await second.records()] == list(range(12))

    with_store(test)


def test_records_are_read_in_pages() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        assert await second.committed() == 0
        assert await second.records_from(0, 5) == []
        for step in range(7):
            await first.commit(record(step), b"", wall_s=float(step))
        assert await second.committed() == 7
        assert [r.step for r in await second.records_from(2, 3)] == [2, 3, 4]
        assert [r.step for r in await second.records_from(5, 10)] == [5, 6]
        assert await second.noted("wall_s", "nothing") == {"wall_s": 6.0}

    with_store(test)


def test_a_record_keeps_what_was_used() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        used: dict[FunctionName, Usage] = {
            "rollout": Usage(1.0, 2.0, 3.0, None),
            "training": Usage(0.0, 1.5, 0.25, 0.125),
        }
        await first.commit(msgspec.structs.replace(record(0), usage=used), b"")
        assert (await second.records())[0].usage == used

    with_store(test)


def test_a_step_is_announced_once() -> None:
    def announce(record: StepRecord) -> JobEvent:
        return JobEvent(type="step", message=f"step {record.step + 1}", data=record.metrics)

    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        stores = [JobStore(redis, "job", announce=announce) for _ in range(2)]
        for step in range(2):
            await stores[0].commit(record(step, reward=step), b"")
            await stores[1].commit(record(step, reward=step), b"")  # after a crash
        with pytest.raises(InternalError):
            await stores[0].commit(record(5), b"")
        events = (await Events(redis).read("job")).data
        assert [(e.message, e.data) for e in events] == [
            ("step 1", {"reward": 0.0}),
            ("step 2", {"reward": 1.0}),
        ]
        await redis.aclose()

    asyncio.run(main())


def test_two_controllers_committing_at_once_book_the_step_once() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        results = await asyncio.gather(
            first.commit(record(0), b""), second.commit(record(0), b""), return_exceptions=True
        )
        assert len(await first.records()) == 1
        assert all(r is None or isinstance(r, InternalError) for r in results)

    with_store(test)


def test_notes_are_json() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        await first.note(eval_before={"accuracy": 0.25, "samples": [1, "a"]})
        assert (await second.notes())["eval_before"] == {"accuracy": 0.25, "samples": [1, "a"]}

    with_store(test)


class _Deaf:
    """A client that loses a cancellation, as ``asyncio.wait_for`` of Python 3.11 may."""

    def __init__(self, error: RedisError | None = None) -> None:
        self.asked = asyncio.Event()
        self._error = error

    async def hset(self, *_: object, **__: object) -> int:
        self.asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error
        return 1


@pytest.mark.parametrize("error", [None, RedisError("gone")])
def test_a_cancellation_that_the_client_loses_is_not_lost(error: RedisError | None) -> None:
    async def main() -> None:
        client = _Deaf(error)
        store = JobStore(cast(Redis, client), "job")
        task = asyncio.create_task(store.add_samples(0, [SAMPLE]))
        await client.asked.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(main())


def test_what_a_cancelled_task_notes_at_its_end_is_noted() -> None:
    async def test(first: JobStore, second: JobStore) -> None:
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await first.note(status="interrupted")
                await first.note(wall_s=1.0)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert await second.notes() == {"status": "interrupted", "wall_s": 1.0}

    with_store(test)


async def grant(server: fakeredis.FakeServer, fence: Fence) -> None:
    await fakeredis.FakeAsyncRedis(server=server).set(fence_key("job"), str(fence))


@contextlib.asynccontextmanager
async def two_replicas() -> AsyncIterator[tuple[fakeredis.FakeServer, JobStore, JobStore]]:
    """A replica whose lease another took since, and the other."""
    server = fakeredis.FakeServer()
    old, new = Fence(1, "a"), Fence(2, "b")
    clients = [fakeredis.FakeAsyncRedis(server=server) for _ in range(2)]
    stores = [JobStore(c, "job", f) for c, f in zip(clients, (old, new), strict=True)]
    await grant(server, old)
    await stores[0].add_samples(0, [SAMPLE])
    await grant(server, new)
    yield server, stores[0], stores[1]
    for client in clients:
        await client.aclose()


def test_a_stale_replica_can_write_nothing() -> None:
    async def main() -> None:
        async with two_replicas() as (_, stale, current):
            for attempt in (
                stale.note(status="failed"),
                stale.add_samples(0, [SAMPLE]),
                stale.add_scores(0, {SAMPLE.id: Scores(0.5, [1.0])}),
                stale.add_reference(0, {SAMPLE.id: b"\1"}),
                stale.commit(record(0), b"stale", status="failed"),
            ):
                with pytest.raises(LostLeaseError):
                    await attempt
            assert await current.notes() == {}
            assert await current.records() == []
            # What it wrote while it held the lease stands.
            assert (await current.step_journal(0)).samples == {SAMPLE.id: SAMPLE}
            await current.note(status="running")
            await current.commit(record(0), b"state")
            assert await current.policy_state() == b"state"
            with pytest.raises(LostLeaseError):
                await stale.commit(record(0), b"state")  # not even what is committed already

    asyncio.run(main())


def test_a_token_granted_twice_is_told_apart_by_its_holder() -> None:
    async def main() -> None:
        async with two_replicas() as (server, _, current):
            await grant(server, Fence(2, "c"))
            with pytest.raises(LostLeaseError):
                await current.commit(record(0), b"")

    asyncio.run(main())


class _TakenOver(fakeredis.FakeAsyncRedis):
    """Grants the job to somebody else after a transaction has looked at its fence."""

    fence: Fence | None = None

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        pipe = super().pipeline(transaction, shard_hint)
        begin = pipe.execute

        async def execute(raise_on_error: bool = True) -> Any:
            if self.fence is not None:
                taken, self.fence = self.fence, None
                await self.set(fence_key("job"), str(taken))
            return await begin(raise_on_error)

        pipe.execute = execute  # type: ignore[method-assign]
        return pipe


@pytest.mark.parametrize("write", ["note", "commit"])
def test_a_lease_lost_in_the_middle_of_a_write_stops_it(write: str) -> None:
    async def main() -> None:
        client = _TakenOver()
        await client.set(fence_key("job"), str(Fence(1, "a")))
        store = JobStore(client, "job", Fence(1, "a"))
        client.fence = Fence(2, "b")
        with pytest.raises(LostLeaseError):
            if write == "note":
                await store.note(status="failed")
            else:
                await store.commit(record(0), b"")
        assert client.fence is None
        assert await store.notes() == {}
        assert await store.records() == []
        await client.aclose()

    asyncio.run(main())
