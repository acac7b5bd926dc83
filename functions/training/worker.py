"""One worker's part in an order: the same on the leader and on every follower.

First each prepares, which may fail on one alone (its model does not fit, its batch cannot be read):
then none begins. What follows is in step: all yield between the same passes, and at each of these
the leader says whether to go on.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from functions.results import open_store
from functions.training.crew import Alone
from functions.training.gathering import help_gathering
from functions.training.group import Group
from functions.training.learner import Learner
from functions.training.orders import Begin, Build, Correct, Gather, Load, Order, Update
from rlhfless.errors import InternalError

Work = Generator[None, None, Any]


class Apart(Exception):
    """Another worker could not prepare; its report says why."""


class Worker:
    """``learner``: the one at hand; there is never a second."""

    def __init__(self, device: torch.device, group: Group) -> None:
        self.group = group
        self.learner: Learner | None = None
        self._alone = Alone(device, group)

    def prepare(self, order: Order) -> Work | None:
        """What is left to be done in step, if anything. Raises ``Apart`` where another failed, and
        its own error where this one did; a learner that could not be prepared is dropped."""
        try:
            work = self._prepare(order)
        except BaseException:
            self.learner = None
            self.group.agree(False)
            raise
        if not self.group.agree(True):
            self.learner = None
            raise Apart
        return work

    def _prepare(self, order: Order) -> Work | None:
        alone = self._alone
        match order:
            case Build(seed, train, gradients):
                self.learner = None  # there may be no room for a second
                request = train or gradients
                if request is None:
                    raise InternalError("an order to build names no request")
                self.learner = alone.build(request, seed)
            case Load(store, job, version):
                alone.load(self._learner, open_store(store), job, version)
            case Correct(store, job, version):
                alone.correct(self._learner, open_store(store), job, version)
            case Update(store, request):
                return alone.update(self._learner, open_store(store), request)
            case Begin(request):
                return alone.begin(self._learner, request)
            case Gather():
                return _helping(self.group, self._learner)
        return None

    @property
    def _learner(self) -> Learner:
        if self.learner is None:
            raise InternalError("this worker has no learner")
        return self.learner


def _helping(group: Group, learner: Learner) -> Work:
    help_gathering(group, learner)
    yield from ()


def in_step(group: Group, work: Work) -> None:
    """A follower's way through ``work``, to its end or to where the leader stops it."""
    for _ in work:
        if not group.told(0):
            work.close()
            return
