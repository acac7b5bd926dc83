"""The event loop of a command that runs functions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, where SIGTERM ends the work in order, as Ctrl-C does.

    Raises ``KeyboardInterrupt`` after Ctrl-C, ``asyncio.CancelledError`` after SIGTERM.
    """
    return asyncio.run(_interruptible(work))


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_report)
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As usual, but for one harmless thing: anyio (4.16, below httpx) completes a read of a Unix
    socket although it was cancelled in the same turn of the loop."""
    late = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if not (late and "Future.set_result(None)" in context["message"]):
        loop.default_exception_handler(context)
