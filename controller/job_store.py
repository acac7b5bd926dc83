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
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, RedisError, WatchError

from controller.collector import FinishedSample
from controller.journal import Scores, StepJournal, StepRecord
from rlhfless.errors import CapacityError, ConflictError, InternalError, TransientError

STEP_PARTS = ("samples", "scores", "reference")


_samples = msgspec.msgpack.Decoder(FinishedSample)
_scores = msgspec.msgpack.Decoder(Scores)
_records = msgspec.json.Decoder(StepRecord)


class JobStore:
    """One job's state in Redis. Raises ``TransientError`` when Redis cannot be reached after its
    client's own retries, ``CapacityError`` when it cannot persist."""

    def __init__(self, redis: Redis, job: str) -> None:
        self.job = job
        self._redis = redis
        self._prefix = f"rlhfless:{{{job}}}:"

    async def create(self, spec: str) -> None:
        """Register the job. Raises ``ConflictError`` if the id is taken."""
        if not await self._do(self._redis.hsetnx(self._key("job"), "spec", spec)):
            raise ConflictError(f"job {self.job} exists already")

    async def exists(self) -> bool:
        return bool(await self._do(self._redis.hexists(self._key("job"), "spec")))

    async def note(self, **values: Any) -> None:
        """Keep JSON values with the job (status, evaluation results, usage)."""
        await self._do(self._redis.hset(self._key("job"), mapping=cast(Any, _encoded(values))))

    async def notes(self) -> dict[str, Any]:
        raw = await self._do(self._redis.hgetall(self._key("job")))
        notes = {k.decode(): v.decode() for k, v in raw.items()}
        return {k: v if k == "spec" else json.loads(v) for k, v in notes.items()}

    async def records(self) -> list[StepRecord]:
        """All committed steps, in order."""
        raw = await self._do(self._redis.hgetall(self._key("steps")))
        return sorted((_records.decode(value) for value in raw.values()), key=lambda r: r.step)

    async def step_journal(self, step: int) -> StepJournal:
        """What an interrupted attempt at this step left."""
        pipe = self._redis.pipeline(transaction=False)
        for part in STEP_PARTS:
            pipe.hgetall(self._step_key(step, part))
        samples, scores, reference = await self._do(pipe.execute())
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
        await self._do(self._commit(record, policy_state, notes))

    async def _commit(
        self, record: StepRecord, policy_state: bytes, notes: Mapping[str, Any]
    ) -> None:
        counter = self._key("committed")
        async with self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(counter)
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
                pipe.hset(self._key("job"), mapping=cast(Any, _encoded(notes)))
            pipe.delete(*(self._step_key(record.step, part) for part in STEP_PARTS))
            try:
                await pipe.execute()
            except WatchError:
                # Also what a connection lost at this moment looks like.
                if int(await self._redis.get(counter) or 0) == committed:
                    raise TransientError("the connection to the job store was lost") from None
                raise InternalError(
                    f"another controller committed step {record.step} of job {self.job} just now"
                ) from None

    async def policy_state(self) -> bytes | None:
        return cast("bytes | None", await self._do(self._redis.get(self._key("policy_state"))))

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _step_key(self, step: int, part: str) -> str:
        return self._key(f"step:{step}:{part}")

    async def _add(self, step: int, part: str, values: Mapping[str, bytes]) -> None:
        if values:
            await self._do(
                self._redis.hset(self._step_key(step, part), mapping=cast(Any, dict(values)))
            )

    async def _do(self, command: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            answer = await command
        except RedisError as error:
            if task.cancelling() > cancellations:
                raise asyncio.CancelledError from error
            # In a pipeline the text begins with the command, record and all.
            text = str(error).rpartition("caused error: ")[2]
            if isinstance(error, OutOfMemoryError) or "MISCONF" in text or "OOM" in text:
                raise CapacityError(
                    f"the job store cannot persist: {text}",
                    hint="free some disk space or memory, then continue with --resume",
                ) from error
            raise TransientError(f"the job store cannot be reached: {text}") from error
        # The client writes through asyncio.wait_for, which on Python 3.11 loses a cancellation that
        # comes as the write ends; whoever cancelled this task would wait for it for ever.
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError
        return answer


def _encoded(notes: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in notes.items()}
