"""The job store: what a job must remember to go on after any process has died.

One job's keys all begin with ``rlhfless:{job}:``. A step's journal grows while the step runs
(finished samples, scores, reference log-probs) and is folded into one record when the step is
committed. Commits are ordered: step n commits only on top of n - 1, in one Redis transaction, so a
step is never booked twice however often its controller dies.

    job            hash    spec, status, created, notes such as the evaluation results
    steps          hash    step -> record (JSON): metrics, version, data position
    committed      string  number of committed steps
    step:{n}:*     hashes  the open step's journal: samples, scores, reference
    policy_state   string  what the policies have learned (lengths, costs), as of the last commit
    fence          string  which replica may write, where there are several (``controller.fencing``)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import WatchError

from controller.collector import FinishedSample
from controller.fencing import Fence, check_fence, fence_key
from controller.journal import Scores, StepJournal, StepRecord
from controller.redis_calls import answer
from controller.service.events import JobEvent, add_to, check_open, ended_key
from rlhfless.errors import ConflictError, InternalError, TransientError

STEP_PARTS = ("samples", "scores", "reference")


_samples = msgspec.msgpack.Decoder(FinishedSample)
_scores = msgspec.msgpack.Decoder(Scores)
_records = msgspec.json.Decoder(StepRecord)


class JobStore:
    """One job's state in Redis. Raises ``TransientError`` when Redis cannot be reached after its
    client's own retries, ``CapacityError`` when it cannot persist.

    With a ``fence``, every write checks it in its own transaction and raises ``LostLeaseError``
    once another replica was granted the job.

    ``announce`` makes of a record the event that tells of it; it is appended to the job's events in
    the transaction that commits the step, hence once; a step of a job that has ended meanwhile is
    refused with ``JobEndedError``.
    """

    def __init__(
        self,
        redis: Redis,
        job: str,
        fence: Fence | None = None,
        announce: Callable[[StepRecord], JobEvent] | None = None,
    ) -> None:
        self.job = job
        self._fence = fence
        self._announce = announce
        self._redis = redis
        self._prefix = f"rlhfless:{{{job}}}:"

    async def create(self, spec: str) -> None:
        """Register the job. Raises ``ConflictError`` if the id is taken."""
        if not await answer(self._redis.hsetnx(job_key(self.job), "spec", spec)):
            raise ConflictError(f"job {self.job} exists already")

    async def exists(self) -> bool:
        return bool(await answer(self._redis.hexists(job_key(self.job), "spec")))

    async def note(self, **values: Any) -> None:
        """Keep JSON values with the job (status, evaluation results, usage)."""
        await self._write(job_key(self.job), _encoded(values))

    async def notes(self) -> dict[str, Any]:
        raw = await answer(self._redis.hgetall(job_key(self.job)))
        notes = {k.decode(): v.decode() for k, v in raw.items()}
        return {k: v if k == "spec" else json.loads(v) for k, v in notes.items()}

    async def noted(self, *names: str) -> dict[str, Any]:
        """Those of the notes that there are."""
        raw = await answer(self._redis.hmget(job_key(self.job), list(names)))
        return {k: json.loads(v) for k, v in zip(names, raw, strict=True) if v is not None}

    async def records(self) -> list[StepRecord]:
        """All committed steps, in order."""
        raw = await answer(self._redis.hgetall(self._key("steps")))
        return sorted((_records.decode(value) for value in raw.values()), key=lambda r: r.step)

    async def committed(self) -> int:
        """How many steps are."""
        return int(await answer(self._redis.get(self._key("committed"))) or 0)

    async def records_from(self, start: int, limit: int) -> list[StepRecord]:
        """The committed ones of the steps ``[start, start + limit)``, in order."""
        steps = [str(step) for step in range(start, start + limit)]
        raw = await answer(self._redis.hmget(self._key("steps"), steps))
        return [_records.decode(value) for value in raw if value is not None]

    async def step_journal(self, step: int) -> StepJournal:
        """What an interrupted attempt at this step left."""
        pipe = self._redis.pipeline(transaction=False)
        for part in STEP_PARTS:
            pipe.hgetall(self._step_key(step, part))
        samples, scores, reference = await answer(pipe.execute())
        return StepJournal(
            samples={k.decode(): _samples.decode(v) for k, v in samples.items()},
            scores={k.decode(): _scores.decode(v) for k, v in scores.items()},
            reference={k.decode(): v for k, v in reference.items()},
        )

    async def add_samples(self, step: int, samples: Iterable[FinishedSample]) -> None:
        await self._add(step, "samples", {s.id: msgspec.msgpack.encode(s) for s in samples})

    async def add_scores(self, step: int, scores: Mapping[str, Scores]) -> None:
        await self._add(step, "scores", {k: msgspec.msgpack.encode(s) for k, s in scores.items()})

    async def add_reference(self, step: int, logprobs: Mapping[str, bytes]) -> None:
        await self._add(step, "reference", logprobs)

    async def commit(self, record: StepRecord, policy_state: bytes, **notes: Any) -> None:
        """Fold the step's journal into its record, and keep ``notes`` as ``note`` does. Repeating
        a commit is harmless; a commit out of order raises ``InternalError``."""
        await answer(self._commit(record, policy_state, notes))

    async def _commit(
        self, record: StepRecord, policy_state: bytes, notes: Mapping[str, Any]
    ) -> None:
        counter = self._key("committed")
        async with self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(counter, fence_key(self.job), ended_key(self.job))
            await self._check_writer(pipe)
            committed = int(await pipe.get(counter) or 0)
            if committed == record.step + 1:
                return
            if committed != record.step:
                raise InternalError(
                    f"step {record.step} cannot be committed: {committed} steps are"
                )
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.hset(self._key("steps"), str(record.step), msgspec.json.encode(record))
            pipe.set(self._key("policy_state"), policy_state)
            pipe.set(counter, committed + 1)
            if notes:
                pipe.hset(job_key(self.job), mapping=cast(Any, _encoded(notes)))
            pipe.delete(*(self._step_key(record.step, part) for part in STEP_PARTS))
            if self._announce is not None:
                add_to(pipe, self.job, self._announce(record))
            try:
                await pipe.execute()
            except WatchError:
                # Also what a connection lost at this moment looks like.
                await self._check_writer(self._redis)
                if int(await self._redis.get(counter) or 0) == committed:
                    raise TransientError("the connection to the job store was lost") from None
                raise InternalError(
                    f"another controller committed step {record.step} of job {self.job} just now"
                ) from None

    async def policy_state(self) -> bytes | None:
        return cast("bytes | None", await answer(self._redis.get(self._key("policy_state"))))

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _step_key(self, step: int, part: str) -> str:
        return self._key(f"step:{step}:{part}")

    async def _add(self, step: int, part: str, values: Mapping[str, bytes]) -> None:
        if values:
            await self._write(self._step_key(step, part), values)

    async def _write(self, key: str, values: Mapping[str, Any]) -> None:
        """Set fields of a hash; repeating it is harmless."""
        mapping = cast(Any, dict(values))
        if self._fence is None:
            await answer(self._redis.hset(key, mapping=mapping))
            return

        async def fenced(pipe: Any) -> None:
            await self._check_fence(pipe)
            pipe.multi()
            pipe.hset(key, mapping=mapping)

        await answer(self._redis.transaction(cast(Any, fenced), fence_key(self.job)))

    async def _check_writer(self, pipe: Any) -> None:
        await self._check_fence(pipe)
        if self._announce is not None:
            await check_open(pipe, self.job)

    async def _check_fence(self, pipe: Any) -> None:
        if self._fence is not None:
            await check_fence(pipe, self.job, self._fence)


def job_key(job: str) -> str:
    """The hash of what is noted of a job; values are JSON, but ``spec``."""
    return f"rlhfless:{{{job}}}:job"


def _encoded(notes: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in notes.items()}
