"""Reads of the object store for whoever asks over HTTP: in threads, a bounded number at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rlhfless.errors import CapacityError, NotFoundError, TransientError, UserError

AT_ONCE = 8
"""More would take the threads that this replica's jobs need."""

P = ParamSpec("P")
T = TypeVar("T")


class GoneError(NotFoundError):
    """It was made, but the object store has lost it: removed by an operator, or damaged."""

    title = "No longer there"
    status = 410


class Reads:
    """Used in one event loop."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``function``'s result. What the store's device or owner refuses is no fault of whoever
        asks, nor are its paths theirs to know: it is raised as ``TransientError``.

        ``FileNotFoundError`` and the ``NotFoundError`` family pass through.
        """
        async with self._free:
            try:
                return await asyncio.to_thread(function, *args, **kwargs)
            except NotFoundError:
                raise
            except (UserError, CapacityError, TransientError) as error:
                raise TransientError("the object store cannot be read just now") from error
