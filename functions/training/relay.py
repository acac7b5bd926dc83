"""Calls that can end although their work cannot.

A collective that waits for a dead or broken worker may not return: torch's threads are not ours to
interrupt. So a leader's handlers do their work in a thread of its own, and the call ends when that
does or when the group breaks, whichever is first.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from functions.context import CallContext, Handler
from rlhfless.messages import Frame

_Item: TypeAlias = Frame | BaseException | None
"""A frame, the error that ends the call, or its end."""


class Relay:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="leader")
        self._waiting: queue.SimpleQueue[_Item] | None = None
        self._broken: BaseException | None = None

    def through(self, handler: Handler) -> Handler:
        """``handler``, which then serves one call at a time."""

        def handle(request: Any, context: CallContext) -> Iterator[Frame]:
            items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
            self._waiting = items
            if self._broken is not None:  # looked at last: ``broke`` has seen ``items``, or we it
                raise self._broken
            self._thread.submit(self._work, handler, request, context, items)
            item: _Item = None
            try:
                while (item := items.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    yield item
            except GeneratorExit:  # nobody listens: the work ends at its next pass
                context.stop("abort")
                while item is not None and not isinstance(item, BaseException):
                    item = items.get()
                raise

        return handle

    def broke(self, error: BaseException) -> None:
        """End the call that is being served, and refuse others."""
        self._broken = error
        if (items := self._waiting) is not None:
            items.put(error)

    @staticmethod
    def _work(
        handler: Handler, request: Any, context: CallContext, items: queue.SimpleQueue[_Item]
    ) -> None:
        try:
            for frame in handler(request, context):
                items.put(frame)
        except BaseException as error:  # the boundary of the thread: the call raises it
            items.put(error)
        else:
            items.put(None)
