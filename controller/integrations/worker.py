"""A tracker's process: takes orders on stdin, one JSON object a line, and answers each on stdout.

``python -m controller.integrations.worker``, started by ``controller.integrations.process``. What
the libraries print goes to stderr. When stdin ends without an order to close, whoever gave the
orders is gone: what was logged is brought home within ``LAST_S``, then the process ends, stuck or
not.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import BinaryIO

import msgspec

from controller.integrations.addresses import guard_addresses
from controller.integrations.kinds import make_tracker
from controller.integrations.tracker import Entry, Logged, RunConfig, Status, Tracker

LAST_S = 15.0
_ERROR_CHARS = 200


class Begin(msgspec.Struct, frozen=True, tag="begin", kw_only=True):
    """``public_hosts_only``: but for ``allowed_hosts``, for a service whose users are strangers."""

    kind: str
    config: RunConfig
    public_hosts_only: bool = False
    allowed_hosts: list[str] = []


class Log(msgspec.Struct, frozen=True, tag="log"):
    entry: Entry


class Close(msgspec.Struct, frozen=True, tag="close"):
    status: Status


Order = Begin | Log | Close


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """``error``: what the library raised, in a line. ``kind``: its class, the same for the same
    cause. ``logged``, of a begin: what the run has already."""

    error: str | None = None
    kind: str = ""
    logged: Logged | None = None


_decode = msgspec.json.Decoder(Order).decode
_encode = msgspec.json.encode


class _Work:
    """Carries out orders. A begin that failed may be given again."""

    def __init__(self) -> None:
        self._tracker: Tracker | None = None
        self._guarded = False
        self._closed = False

    def do(self, order: Order) -> Answer:
        if isinstance(order, Begin):
            if order.public_hosts_only and not self._guarded:
                guard_addresses(order.allowed_hosts)
                self._guarded = True
            tracker = make_tracker(order.kind)
            logged = tracker.begin(order.config)
            self._tracker = tracker
            return Answer(logged=logged)
        assert self._tracker is not None
        if isinstance(order, Close):
            self._tracker.close(order.status)
            self._closed = True
        else:
            self._tracker.log(order.entry)
        return Answer()

    def end(self) -> None:
        """Nobody is there to say how the job ended; it may well go on."""
        if self._tracker is not None and not self._closed:
            self._tracker.close("interrupted")


def _read(source: BinaryIO, orders: queue.SimpleQueue[Order | None]) -> None:
    for line in source:
        orders.put(_decode(line))
    orders.put(None)
    # From here on nobody waits for us; a library that hangs must not keep the process.
    last = threading.Timer(LAST_S, os._exit, args=(1,))
    last.daemon = True
    last.start()


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(sys.stdin.buffer, orders), daemon=True)
    reader.start()
    work = _Work()
    while (order := orders.get()) is not None:
        try:
            answer = work.do(order)
        except Exception as error:  # the boundary: a library may raise anything
            text = " ".join(str(error).split())[:_ERROR_CHARS]
            answer = Answer(error=f"{type(error).__name__}: {text}", kind=type(error).__name__)
        try:
            answers.write(_encode(answer) + b"\n")
            answers.flush()
        except BrokenPipeError:
            break
    work.end()


if __name__ == "__main__":
    main()
