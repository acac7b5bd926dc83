"""What a follower makes of the end of its connection."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from functions.training import links
from functions.training.orders import Leave, Meet, send

PATIENCE_S = 30.0


def test_a_leader_that_ends_without_a_word_is_gone_at_once() -> None:
    leader, follower = socket.socketpair()
    gone = threading.Event()
    with leader, follower:
        orders = links.orders(follower, gone.set)
        send(leader, Meet(1))
        assert next(orders) == Meet(1)
        leader.close()
        assert gone.wait(PATIENCE_S)


def test_who_was_told_to_leave_has_time_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader's last word and its end come together, which must not cut an orderly end short."""
    asked, over, gone = threading.Event(), threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        assert seconds == links.LEAVE_S
        asked.set()
        over.wait(PATIENCE_S)

    monkeypatch.setattr(links, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    leader, follower = socket.socketpair()
    with leader, follower:
        send(leader, Leave(True))
        leader.close()
        assert next(links.orders(follower, gone.set)) == Leave(True)
        assert asked.wait(PATIENCE_S)
        assert not gone.is_set()
        over.set()
        assert gone.wait(PATIENCE_S)


def test_a_word_that_nobody_understands_is_the_end() -> None:
    leader, follower = socket.socketpair()
    gone = threading.Event()
    with leader, follower:
        orders = links.orders(follower, gone.set)
        send(leader, Meet(1))
        assert next(orders) == Meet(1)
        leader.sendall(b"\0\0\0\1\xc1")
        assert gone.wait(PATIENCE_S)
