"""Pages of a step's samples, sorted as somebody wants to look at them.

A step is unpacked once and kept for the next page. What is kept are its lines, and of each only the
id and the reward decoded: tokens and log-probs, most of a large step, are decoded for the samples
of a page.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec

from controller.service.reads import GoneError, Reads
from controller.service.samples import SampleRow, samples_name, unpack
from rlhfless import rest
from rlhfless.errors import NotFoundError
from rlhfless.objects import ObjectStore

Sort = Literal["id", "reward", "-reward"]

KEEP_BYTES = 128 << 20
"""Unpacked steps kept, in all."""


class _Outline(msgspec.Struct, frozen=True):
    id: str
    reward: float


_outline = msgspec.json.Decoder(_Outline).decode
_row = msgspec.json.Decoder(SampleRow).decode


@dataclass(frozen=True)
class _Step:
    lines: Sequence[bytes]
    outlines: Sequence[_Outline]
    num_bytes: int

    @cached_property
    def places(self) -> dict[str, int]:
        return {outline.id: place for place, outline in enumerate(self.outlines)}

    def order(self, sort: Sort) -> list[int]:
        """Places of the lines as sorted; samples of one reward in the step's order."""
        places = list(range(len(self.lines)))
        if sort != "id":
            sign = -1.0 if sort == "-reward" else 1.0
            places.sort(key=lambda place: sign * self.outlines[place].reward)
        return places


class Samples:
    """The samples of all jobs."""

    def __init__(self, objects: ObjectStore, reads: Reads, keep_bytes: int = KEEP_BYTES) -> None:
        self._objects = objects
        self._reads = reads
        self._keep_bytes = keep_bytes
        self._steps: OrderedDict[tuple[str, int], _Step] = OrderedDict()
        self._lock = threading.Lock()

    async def page(
        self, job: str, step: int, sort: Sort, after: str | None, limit: int, *, tokens: bool
    ) -> bytes:
        """Samples of a committed step, counted from 1, that come after the sample ``after``, as
        they are sent (``rest.Page[rest.Rollout]``): a page of long responses with their tokens is
        megabytes, which are written beside the event loop.

        Raises ``GoneError`` if the store has lost them, ``NotFoundError`` if there is no sample
        ``after``, ``TransientError``.
        """
        return await self._reads.read(self._page, job, step, sort, after, limit, tokens)

    def _page(
        self, job: str, step: int, sort: Sort, after: str | None, limit: int, tokens: bool
    ) -> bytes:
        found = self._step(job, step)
        order = found.order(sort)
        if after is not None:
            if after not in found.places:
                raise NotFoundError(f"step {step} has no sample {after[:80]!r}", param="after")
            order = order[order.index(found.places[after]) + 1 :]
        try:
            rows = [_row(found.lines[place]) for place in order[:limit]]
            data = [_values(row, step, tokens) for row in rows]
        except ValueError as error:
            raise _damaged(step) from error
        page: rest.Page[rest.Rollout] = rest.Page(data=[], has_more=len(order) > limit)
        return msgspec.json.encode({**page.model_dump(), "data": data})

    def _step(self, job: str, step: int) -> _Step:
        key = (job, step)
        with self._lock:
            if key in self._steps:
                self._steps.move_to_end(key)
                return self._steps[key]
        found = self._load(job, step)
        with self._lock:
            self._steps[key] = found
            kept = sum(step.num_bytes for step in self._steps.values())
            while kept > self._keep_bytes:
                kept -= self._steps.popitem(last=False)[1].num_bytes
        return found

    def _load(self, job: str, step: int) -> _Step:
        try:
            lines = unpack(self._objects.get(samples_name(job, step)))
            outlines = [_outline(line) for line in lines]
        except FileNotFoundError:
            raise GoneError(f"the samples of step {step} are no longer kept") from None
        except ValueError as error:
            raise _damaged(step) from error
        return _Step(lines, outlines, sum(map(len, lines)))


def _damaged(step: int) -> GoneError:
    return GoneError(f"the samples of step {step} are damaged")


def _values(row: SampleRow, step: int, tokens: bool) -> dict[str, Any]:
    """The sample's document. Its tokens, which may be very many, were checked as they were read."""
    document = rest.Rollout(
        id=row.id,
        step=step,
        prompt=row.prompt,
        completion=row.completion,
        reward=row.reward,
        rewards=row.rewards,
        num_tokens=row.num_tokens,
        finish_reason=row.finish_reason,
        version=row.version,
    )
    values = document.model_dump()
    if tokens:
        pairs = zip(row.pieces, row.logprobs, strict=True)
        values["tokens"] = [{"text": text, "logprob": logprob} for text, logprob in pairs]
    return values
