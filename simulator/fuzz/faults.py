"""What goes wrong between a controller and its functions: the network, and answers on it.

Calls are refused, lost before they arrive, amid their stream, or after the work is done; frames
come late, twice or in pieces; changes to running calls are refused, come late, or are taken though
the answer says they are not; a call whose caller has gone may go on for a while. What dies by
itself (instances) is ``simulator.fuzz.chaos``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from controller.platforms.base import Instance
from rlhfless.errors import CapacityError, RlhflessError, TransientError
from rlhfless.messages import (
    TERMINAL,
    AnyFrame,
    Finished,
    FunctionName,
    Request,
    RolloutRequest,
    SteerRequest,
    Tokens,
)
from simulator.fuzz.answers import AnsweringPlatform
from simulator.fuzz.chance import Chance
from simulator.fuzz.life import Life
from simulator.fuzz.trace import Violation
from simulator.fuzz.witness import Witness


@dataclass
class FaultyPlatform:
    """One controller's way to ``inner``. ``orphans``: calls that go on without their caller."""

    inner: AnsweringPlatform
    life: Life
    chance: Chance
    witness: Witness = field(default_factory=Witness)
    orphans: set[asyncio.Task[None]] = field(default_factory=set)

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        chance, call = self.chance, request.call.id
        self.life.cross("invoke", call)
        self.witness.asked(request)
        if chance.strikes("refused", call):
            raise CapacityError("no room")
        if chance.strikes("lost_before", call):
            raise TransientError("the connection broke before the call arrived")
        if isinstance(request, RolloutRequest):
            self.witness.given(call, request.samples)
            frames = self.inner.invoke(request)
        elif chance.strikes("orphaned", call):
            frames = self._orphaned(request)
        else:
            frames = self.inner.invoke(request)
        try:
            async with aclosing(frames):
                async for frame in frames:
                    for piece in await self._carried(frame, call):
                        self.life.cross(type(piece).__name__, call)
                        yield piece
                        if isinstance(request, RolloutRequest):
                            self.witness.told(call, self.inner.tasks(call), piece)
                        if isinstance(piece, TERMINAL):
                            return
        finally:
            self.witness.over(call)

    async def _carried(self, frame: AnyFrame, call: str) -> list[AnyFrame]:
        """What arrives of a frame, in time. Raises ``TransientError`` if the stream is lost."""
        chance = self.chance
        if chance.strikes("slow_frame", call):
            await asyncio.sleep(chance.seconds(0.1))
        if chance.strikes("lost_amid", call):
            raise TransientError("the stream broke")
        if isinstance(frame, TERMINAL) and chance.strikes("lost_reply", call):
            raise TransientError("the stream broke as the work was done")
        return list(self._pieces(frame, call))

    async def steer(self, request: SteerRequest) -> bool:
        chance, change = self.chance, request.call.id
        self.life.cross("steer", change, *request.release, *(task.id for task in request.samples))
        if chance.strikes("steer_refused", change):
            return False
        if chance.strikes("steer_slow", change):
            await asyncio.sleep(chance.seconds(0.1))
            self.life.cross("steer arrives", change)
        if self.inner.runs(request.target):  # or it comes too late, and changes nothing
            self.witness.given(request.target, request.samples)
        taken = await self.inner.steer(request)
        if chance.strikes("steer_repeated", change):
            taken = await self.inner.steer(request)
        if chance.strikes("steer_unheard", change):
            await asyncio.sleep(chance.seconds(0.3))
            taken = False
        self.life.cross("steered", change, taken)
        return taken

    async def scale(self, function: FunctionName, count: int) -> None:
        self.life.cross("scale", function, count)
        await self.inner.scale(function, count)

    def instances(self) -> tuple[Instance, ...]:
        return self.inner.instances()

    async def close(self) -> None:
        await self.inner.close()

    def _pieces(self, frame: AnyFrame, call: str) -> Iterator[AnyFrame]:
        """The frame, or in pieces, or twice: an engine may cut its news as it likes."""
        if isinstance(frame, Tokens) and self.chance.strikes("split", call):
            yield from _split(frame)
        else:
            yield frame
        if isinstance(frame, Tokens | Finished) and self.chance.strikes("repeated", call):
            yield frame

    async def _orphaned(self, request: Request) -> AsyncGenerator[AnyFrame]:
        """The call, which goes on when its caller goes away."""
        queue: asyncio.Queue[AnyFrame | Exception] = asyncio.Queue()

        async def carry() -> None:
            try:
                async with aclosing(self.inner.invoke(request)) as frames:
                    async for frame in frames:
                        queue.put_nowait(frame)
            except (RlhflessError, Violation) as error:
                queue.put_nowait(error)

        task = asyncio.get_running_loop().create_task(carry(), name=f"orphan {request.call.id}")
        self.orphans.add(task)
        task.add_done_callback(self.orphans.discard)
        while True:
            frame = await queue.get()
            if isinstance(frame, Exception):
                raise frame
            yield frame


def _split(frame: Tokens) -> Iterator[Tokens]:
    """A frame an entry, and longer entries in halves."""
    offset = 0
    for sample, start, count in zip(frame.samples, frame.starts, frame.counts, strict=True):
        half = (count + 1) // 2
        for begin, size in ((0, half), (half, count - half)):
            if size == 0:
                continue
            at = offset + begin
            yield msgspec.structs.replace(
                frame,
                samples=[sample],
                starts=[start + begin],
                counts=[size],
                tokens=frame.tokens[at : at + size],
                logprobs=frame.logprobs[4 * at : 4 * (at + size)],
            )
        offset += count
