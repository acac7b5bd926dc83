"""Virtual time: an asyncio event loop whose clock jumps to the next timer when nothing is ready.

The orchestrator asks time only of its loop, so the same code runs on this one in simulations and
unit tests, thousands of times faster than the time it reports, and always the same way. When
everything waits and no timer is left, nothing can ever happen again: that is a ``Deadlock``, and
its message names the tasks and where each waits.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """All tasks wait for something that cannot come."""


class _JumpingSelector(selectors.BaseSelector):
    """Turns the wait for a timer into a jump of the clock.

    The loop's own wake-up pipe is registered here but never polled: on this loop nothing happens
    outside it.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            assert self.loop is not None
            raise Deadlock(describe_waiters(self.loop))
        if timeout > 0:
            self.now_s += timeout
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


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time()`` starts at 0 seconds and moves only by jumps from timer to timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.loop = self

    def time(self) -> float:
        return self._jumping.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on virtual time. Raises ``Deadlock``."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def describe_waiters(loop: asyncio.AbstractEventLoop) -> str:
    """One line a task: its name and the innermost frame it waits in."""
    lines = []
    for task in sorted(asyncio.all_tasks(loop), key=lambda t: t.get_name()):
        stack = task.get_stack()
        if stack:
            frame = stack[-1]
            where = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        else:
            where = "not started"
        lines.append(f"  {task.get_name()}: waits in {where}")
    return "nothing is left to happen; waiting:\n" + "\n".join(lines)
