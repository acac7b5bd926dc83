"""First results: a call that is repeated is answered with what its first run returned.

A result is the encoded terminal frame. It is kept in memory for repeats on this instance and in
the object store, under ``results/{job}/{call id}``, for repeats anywhere. Failures are not kept:
a repeat tries again.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from functions.context import CallContext, Handler
from rlhfless.errors import TransientError, UserError
from rlhfless.frames import FrameReader, encode_frame
from rlhfless.messages import TERMINAL, AnyFrame, CallInfo, Frame, Problem
from rlhfless.objects import ObjectStore

open_store = lru_cache(maxsize=64)(ObjectStore)


def result_name(call: CallInfo) -> str:
    """Raises ``UserError`` for an id that cannot be an object's name."""
    parts = (call.job, *call.id.split("/"))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise UserError(f"{call.id!r} cannot be the id of a call", param="call.id")
    return "/".join(("results", *parts))


class RecentResults:
    """The last results of this instance, least recently used first to go. Used in the loop only."""

    def __init__(self, limit: int = 64, limit_bytes: int = 64 << 20) -> None:
        self._results: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0

    def get(self, call: CallInfo) -> bytes | None:
        key = (call.store, result_name(call))
        if key in self._results:
            self._results.move_to_end(key)
        return self._results.get(key)

    def add(self, call: CallInfo, result: bytes) -> None:
        key = (call.store, result_name(call))
        self._bytes += len(result) - len(self._results.pop(key, b""))
        self._results[key] = result
        while self._results and (
            len(self._results) > self._limit or self._bytes > self._limit_bytes
        ):
            _, dropped = self._results.popitem(last=False)
            self._bytes -= len(dropped)


def stored_first(handler: Handler) -> Handler:
    """``handler``, answered from the object store where an earlier run left its result there.

    Yields the terminal frame alone; progress of a unary call goes nowhere.
    """

    def handle(request: Any, context: CallContext) -> Iterator[Frame]:
        name = result_name(request.call)
        stored: list[AnyFrame] = []
        with contextlib.suppress(FileNotFoundError, TransientError):  # none, or a torn one
            stored = list(FrameReader().feed(context.store.get(name)))
        if stored:
            yield stored[0]
            return
        for frame in handler(request, context):
            if not isinstance(frame, TERMINAL):
                continue
            if not isinstance(frame, Problem):
                context.store.put(name, encode_frame(frame))
            yield frame
            return

    return handle
