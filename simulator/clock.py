"""Virtual time: an asyncio event loop whose clock jumps to the next timer when nothing is ready.

The orchestrator asks time only of its loop, so the same code runs on this one in simulations and
unit tests, thousands of times faster than the time it reports, and always the same way. When
everything waits and no timer is left, nothing can ever happen again: that is a ``Deadlock``, and
its message names the tasks and what each awaits. When tasks are busy for ever without letting time
pass, that is a ``Livelock``.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """All tasks wait for something that cannot come."""


class Livelock(RuntimeError):
    """Tasks wake each other for ever, and time stands still."""


MOST_ROUNDS = 1_000_000
"""Of the loop at one moment of virtual time; each runs all that is ready."""


class _JumpingSelector(selectors.BaseSelector):
    """Turns the wait for a timer into a jump of the clock.

    The loop's own wake-up pipe is registered here but never polled: on this loop nothing happens
    outside it.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.rounds = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            assert self.loop is not None
            raise Deadlock(f"nothing is left to happen; waiting:\n{describe_waiters(self.loop)}")
        if timeout > 0:
            self.now_s += timeout
            self.rounds = 0
        self.rounds += 1
        if self.rounds > MOST_ROUNDS:
            assert self.loop is not None
            self.rounds = 0  # what is left can still be cancelled
            waiters = describe_waiters(self.loop)
            raise Livelock(f"time stands still at {self.now_s:g} s; waiting:\n{waiters}")
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class _Numbered(asyncio.Task[Any]):
    """A task whose place in a set follows from its number, not from its address: a task group that
    is cancelled cancels its tasks in the same order each time."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self._number = number  # first: the task is put into a set as it is made
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time()`` starts at 0 seconds and moves only by jumps from timer to timer.

    Blocking work handed to threads (``asyncio.to_thread``) runs at once and takes no time.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.loop = self
        numbers = itertools.count()

        def make(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> _Numbered:
            return _Numbered(coro, number=next(numbers), loop=loop, **options)

        self.set_task_factory(make)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # as an executor does: the waiter gets it
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on virtual time. Raises ``Deadlock``."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def describe_waiters(loop: asyncio.AbstractEventLoop) -> str:
    """One line a task: its name, the calls it is in, outermost first, and where the last waits."""
    lines = []
    for task in sorted(asyncio.all_tasks(loop), key=lambda t: t.get_name()):
        frames = _awaited_frames(task.get_coro())
        where = "not started"
        if frames:
            names = " > ".join(frame.f_code.co_qualname for frame in frames)
            where = f"{names} ({frames[-1].f_code.co_filename}:{frames[-1].f_lineno})"
        lines.append(f"  {task.get_name()}: waits in {where}")
    return "\n".join(lines)


def _awaited_frames(awaitable: Any) -> list[FrameType]:
    """What a suspended coroutine awaits, from its outermost frame to its innermost."""
    frames: list[FrameType] = []
    while awaitable is not None:
        for kind in ("cr", "ag", "gi"):
            if hasattr(awaitable, f"{kind}_frame"):
                frame = getattr(awaitable, f"{kind}_frame")
                frames += [] if frame is None else [frame]
                awaitable = getattr(awaitable, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
                break
        else:
            return frames
    return frames
