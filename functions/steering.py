"""The streams of an instance that can be changed while they run, by the id of their call."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from functions.inbox import Inbox
from rlhfless.messages import CallInfo, Steered, SteerRequest

_REMEMBERED = 64
"""Ended calls whose changes are still acknowledged when their sender asks again."""

_Key: TypeAlias = tuple[str, str, str]


class Steering:
    """Used in the event loop only."""

    def __init__(self) -> None:
        self._running: dict[_Key, Inbox] = {}
        self._ended: OrderedDict[_Key, Inbox] = OrderedDict()

    def began(self, call: CallInfo, inbox: Inbox) -> None:
        key = _key(call, call.id)
        self._running[key] = inbox
        self._ended.pop(key, None)

    def ended(self, call: CallInfo, inbox: Inbox) -> None:
        """Whatever became of it; a call that was not announced is none of ours."""
        key = _key(call, call.id)
        if self._running.get(key) is not inbox:
            return
        del self._running[key]
        inbox.shut()
        self._ended[key] = inbox
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def steer(self, change: SteerRequest) -> Steered:
        key = _key(change.call, change.target)
        inbox = self._running.get(key) or self._ended.get(key)
        return Steered(accepted=inbox is not None and inbox.offer(change))

    def close(self) -> None:
        """The instance is going away: nothing new is accepted."""
        for inbox in self._running.values():
            inbox.shut()


def _key(call: CallInfo, name: str) -> _Key:
    return call.store, call.job, name
