"""The connections between a leader and its followers: orders out, reports back, and news of ends.

One TCP connection a follower, kept for the group's life. A process that ends, however it does,
closes its end, which the other side learns at once; a machine that is gone is found out by the
kernel's probes within ``PROBED_S``. What is said is in ``functions.training.orders``.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from functions.ranks import JOIN_S, Ranks
from functions.training.orders import (
    FromLeader,
    Going,
    Hello,
    Leave,
    Report,
    of_follower,
    of_leader,
    receive,
    send,
)
from rlhfless.errors import InternalError, TransientError

PROBED_S = 30
LEAVE_S = 5.0
"""A follower that was told to leave, and whose leader is gone, has so long to end in order; it may
be in a collective that never will."""
_RETRY_S = 0.1
_POLL_S = 0.5
_log = logging.getLogger(__name__)


def follow(ranks: Ranks, timeout_s: float = JOIN_S) -> socket.socket:
    """A follower's connection to its leader, who may not be up yet. Raises ``TransientError``."""
    give_up = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection((ranks.host, ranks.port), timeout=10)
        except OSError as error:
            if time.monotonic() > give_up:
                raise TransientError(
                    f"worker {ranks.rank} did not reach its leader at {ranks.host}:{ranks.port} "
                    f"within {timeout_s:g} s: {error}"
                ) from error
            time.sleep(_RETRY_S)
            continue
        _keep_alive(connection)
        send(connection, Hello(ranks.rank, ranks.token))
        return connection


def orders(connection: socket.socket, gone: Callable[[], None]) -> Iterator[FromLeader]:
    """What the leader says, as it says it; ``gone`` is called, in a thread, when it is gone."""
    waiting: queue.SimpleQueue[FromLeader] = queue.SimpleQueue()

    def read() -> None:
        leaving = False
        try:
            while (data := receive(connection)) is not None:
                order = of_leader(data)
                leaving = isinstance(order, Leave)
                waiting.put(order)
        except msgspec.DecodeError:
            _log.exception("the leader said what nobody here understands")
        if leaving:
            time.sleep(LEAVE_S)
        gone()

    threading.Thread(target=read, name="leader", daemon=True).start()
    while True:
        yield waiting.get()


class Listener(Protocol):
    """Who hears what followers say of themselves, at any time."""

    def lost(self, rank: int, why: str) -> None: ...

    def failed(self, rank: int, problem: dict[str, Any]) -> None:
        """In an order that others may still be at."""
        ...

    def going(self, rank: int) -> None: ...


class Links:
    """The leader's end; ``listener`` is called in threads."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._connections: dict[int, socket.socket] = {}
        self._children: dict[int, int] = {}
        self._reports: queue.SimpleQueue[tuple[int, Report]] = queue.SimpleQueue()
        self._closing = False

    def gather(self, ranks: Ranks, timeout_s: float = JOIN_S) -> None:
        """Wait for all followers. Raises ``TransientError`` if one does not come, or a child of
        ours among them ends first."""
        assert ranks.listener is not None
        self._children = {ranks.rank + 1 + n: pid for n, pid in enumerate(ranks.children)}
        give_up = time.monotonic() + timeout_s
        ranks.listener.settimeout(_POLL_S)
        while missing := set(range(1, ranks.size)) - self._connections.keys():
            for rank in missing & self._children.keys():
                if (end := self._end_of(rank)) is not None:
                    raise TransientError(f"worker {rank} ended before the group was whole: {end}")
            if time.monotonic() > give_up:
                few = ", ".join(map(str, sorted(missing)[:5]))
                raise TransientError(
                    f"{len(missing)} of {ranks.size} workers did not come within {timeout_s:g} s, "
                    f"such as {few}"
                )
            with contextlib.suppress(TimeoutError):
                self._admit(ranks, ranks.listener.accept()[0])
        ranks.listener.close()

    def _admit(self, ranks: Ranks, connection: socket.socket) -> None:
        connection.settimeout(10)
        data = receive(connection)
        try:
            hello = None if data is None else of_follower(data)
        except msgspec.DecodeError:
            hello = None
        if (
            not isinstance(hello, Hello)
            or not hmac.compare_digest(hello.token.encode(), ranks.token.encode())
            or hello.rank in self._connections
            or not 0 < hello.rank < ranks.size
        ):
            _log.warning("a connection that is no worker's was closed")
            connection.close()
            return
        _keep_alive(connection)
        self._connections[hello.rank] = connection

    def listen(self) -> None:
        """From now on followers are heard. Once, when all are there."""
        for rank, connection in self._connections.items():
            threading.Thread(
                target=self._hear, args=(rank, connection), name=f"worker-{rank}", daemon=True
            ).start()

    def _hear(self, rank: int, connection: socket.socket) -> None:
        while (data := receive(connection)) is not None:
            match of_follower(data):
                case Report() as report:
                    if report.problem is not None:
                        self._listener.failed(rank, report.problem)
                    self._reports.put((rank, report))
                case Going():
                    self._listener.going(rank)
                case Hello():
                    raise InternalError(f"worker {rank} says hello twice")
        if not self._closing:
            self._listener.lost(rank, self._end_of(rank, wait_s=1.0) or "its connection closed")

    def tell(self, message: FromLeader) -> None:
        """All followers. One that is gone is not told; ``lost`` says so."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                send(connection, message)

    def reports(self, timeout_s: float) -> dict[int, Report]:
        """One of each follower, as far as they come in time or before one is lost."""
        found: dict[int, Report] = {}
        give_up = time.monotonic() + timeout_s
        while len(found) < len(self._connections):
            left_s = give_up - time.monotonic()
            try:
                rank, report = self._reports.get(timeout=max(0.001, left_s))
            except queue.Empty:
                break
            if rank < 0:
                break
            found[rank] = report
        return found

    def interrupt(self) -> None:
        """No report is worth waiting for any more."""
        self._reports.put((-1, Report()))

    def close(self, well: bool, timeout_s: float = 5.0) -> None:
        """Followers leave; children of ours that do not are ended."""
        self._closing = True
        self.tell(Leave(well))
        give_up = time.monotonic() + timeout_s
        for rank, pid in self._children.items():
            end = self._end_of(rank, wait_s=max(0.0, give_up - time.monotonic()))
            if end is None:
                with contextlib.suppress(ProcessLookupError):  # the thread that hears it was first
                    os.kill(pid, signal.SIGKILL)
                self._end_of(rank, wait_s=1.0)
        for connection in self._connections.values():
            connection.close()

    def _end_of(self, rank: int, wait_s: float = 0.0) -> str | None:
        """How a child of ours ended; None while it runs, or where it is none of ours."""
        pid = self._children.get(rank)
        give_up = time.monotonic() + wait_s
        while pid is not None:
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                return "it ended before"
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return f"pid {pid} " + (
                    f"was killed by signal {-code}" if code < 0 else f"left with code {code}"
                )
            if time.monotonic() >= give_up:
                break
            time.sleep(0.01)
        return None


def _keep_alive(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBED_S // 2),
        ("TCP_KEEPINTVL", PROBED_S // 6),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", PROBED_S * 1000),
    ):
        if hasattr(socket, name):  # not everywhere
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
