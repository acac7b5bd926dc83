"""Changes to a running call: taken once and in order, or refused, whoever is faster."""

from __future__ import annotations

import threading

import pytest

from functions.inbox import Inbox
from rlhfless.messages import CallInfo, SteerRequest
from tests.support.rollout import make_context

CALL = CallInfo(id="steer", job="job", step=0, deadline_s=1.0, store="memory://")


def change(number: int) -> SteerRequest:
    return SteerRequest(call=CALL, target="call", number=number, release=[number])


def opened() -> Inbox:
    inbox = Inbox()
    inbox.open()
    return inbox


def test_what_was_not_opened_refuses() -> None:
    inbox = Inbox()
    assert not inbox.offer(change(1))
    assert inbox.take() == []


def test_changes_come_out_in_order_and_once() -> None:
    inbox = opened()
    assert all(inbox.offer(change(n)) for n in (1, 2, 3))
    assert [c.number for c in inbox.take()] == [1, 2, 3]
    assert inbox.take() == []
    assert inbox.offer(change(4))
    assert [c.number for c in inbox.take()] == [4]


@pytest.mark.parametrize("number", [-1, 0, 4, 99])
def test_numbers_without_a_predecessor_are_refused(number: int) -> None:
    inbox = opened()
    for n in (1, 2):
        inbox.offer(change(n))
    assert not inbox.offer(change(number))
    assert len(inbox.take()) == 2


def test_a_repeat_is_acknowledged_and_changes_nothing() -> None:
    inbox = opened()
    assert inbox.offer(change(1))
    assert inbox.offer(change(1))
    assert len(inbox.take()) == 1
    assert inbox.offer(change(1))
    assert inbox.close() == []
    assert inbox.offer(change(1)), "it was taken, and so it is told"
    assert inbox.take() == []


def test_closing_gives_what_came_at_the_last_moment() -> None:
    inbox = opened()
    inbox.offer(change(1))
    assert [c.number for c in inbox.close()] == [1]
    assert inbox.offer(change(2)), "it was not closed yet"
    assert [c.number for c in inbox.close()] == [2]
    assert inbox.close() == []
    assert not inbox.offer(change(3))
    assert inbox.close() == []


def test_what_is_shut_keeps_what_it_holds() -> None:
    inbox = opened()
    inbox.offer(change(1))
    inbox.shut()
    inbox.open()
    assert not inbox.offer(change(2))
    assert len(inbox.take()) == 1


def test_a_context_hands_on_to_its_inbox() -> None:
    context = make_context()
    context.inbox.open()
    context.inbox.offer(change(1))
    assert len(context.take()) == 1
    context.inbox.offer(change(2))
    assert len(context.close_inbox()) == 1
    assert context.close_inbox() == []
    assert not context.inbox.offer(change(3))


@pytest.mark.parametrize("patience", [0, 1, 5, 50])
def test_nothing_is_lost_between_threads(patience: int) -> None:
    """A handler that ends after some empty looks, against a sender that never rests."""
    for _ in range(40):
        inbox, taken, accepted = opened(), [], []
        done = threading.Event()

        def send(inbox: Inbox = inbox, accepted: list[int] = accepted) -> None:
            number = 1
            while inbox.offer(change(number)):
                accepted.append(number)
                number += 1
                if number > 500:
                    return

        def handle(
            inbox: Inbox = inbox, taken: list[int] = taken, done: threading.Event = done
        ) -> None:
            idle = 0
            while True:
                new = inbox.take()
                idle = 0 if new else idle + 1
                if idle > patience:
                    new = inbox.close()
                    if not new:
                        break
                taken += [c.number for c in new]
            done.set()

        threads = [threading.Thread(target=send), threading.Thread(target=handle)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert done.is_set()
        assert taken == accepted == list(range(1, len(taken) + 1))
