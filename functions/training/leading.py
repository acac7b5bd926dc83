"""The leader's crew: an order to all followers, its own part in it, and their reports.

The leader alone decides: followers hold what they are told to hold and never look at what is
committed. An order that fails on all of them alike (a batch that cannot be learned from, a loss
that is not finite) is an error of the call, and the group goes on. One that fails on some leaves
the others in the middle of a collective, so then, as when a worker ends, the group has broken: the
call that is being served ends at once with the reason, and so does the instance.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import torch

from functions.execution import as_error
from functions.ranks import JOIN_S, Ranks
from functions.training.crew import Tensors
from functions.training.gathering import Gathered
from functions.training.group import COLLECTIVE_S, Group, new_store, stay_here
from functions.training.learner import Learner, Terms
from functions.training.links import Links
from functions.training.orders import (
    Begin,
    Build,
    Correct,
    Gather,
    Load,
    Meet,
    Order,
    Report,
    Update,
)
from functions.training.worker import Apart, Worker
from functions.training.worker import Work as Steps
from rlhfless.errors import InternalError, RlhflessError, TransientError, from_problem
from rlhfless.messages import GradientsRequest, TrainRequest
from rlhfless.objects import ObjectStore

REPORT_S = 15.0
"""After an error of its own the leader waits so long for the others' reports; one that does not
come is from a worker that is still in a collective."""
FAILED_S = 5.0
"""So long after a follower's error the leader should have met it, too."""
_log = logging.getLogger(__name__)


class Leading:
    """A ``Crew``. ``broke(error)`` is called, in any thread, when the group is of no use any more;
    ``drain()`` when a follower's machine wants it to end in order."""

    def __init__(
        self,
        ranks: Ranks,
        device: torch.device,
        broke: Callable[[RlhflessError], None],
        drain: Callable[[], None],
        join_s: float = JOIN_S,
        collective_s: float = COLLECTIVE_S,
    ) -> None:
        self._broke = broke
        self._drain = drain
        self._lock = threading.Lock()
        self._broken: RlhflessError | None = None
        self._ended = 0  # orders
        self._size = ranks.size
        self._gang = len(ranks.children) + 1 < ranks.size
        self._links = Links(self)
        self._links.gather(ranks, join_s)
        if ranks.on_one_machine:
            stay_here()
        store = new_store(here=ranks.on_one_machine)
        self._links.tell(Meet(store.port))
        self._links.listen()
        group = Group.meet(store, ranks.rank, ranks.size, device, collective_s)
        self._worker = Worker(device, group)

    # --- what a crew does -------------------------------------------------------------------------

    def build(self, request: Terms, seed: int) -> Learner:
        if isinstance(request, TrainRequest):
            self._at_once(Build(seed, train=request))
        else:
            self._at_once(Build(seed, gradients=request))
        assert self._worker.learner is not None
        return self._worker.learner

    def load(self, learner: Learner, store: ObjectStore, job: str, version: int) -> None:
        self._check(learner)
        self._at_once(Load(store.url, job, version))

    def update(
        self, learner: Learner, store: ObjectStore, request: TrainRequest
    ) -> Generator[None, None, dict[str, float]]:
        self._check(learner)
        metrics: dict[str, float] = yield from self._carry_out(Update(store.url, request))
        return metrics

    def begin(self, learner: Learner, request: GradientsRequest) -> Generator[None, None, None]:
        self._check(learner)
        yield from self._carry_out(Begin(request))

    def correct(self, learner: Learner, store: ObjectStore, job: str, version: int) -> None:
        self._check(learner)
        self._at_once(Correct(store.url, job, version))

    @contextlib.contextmanager
    def tensors(self, learner: Learner) -> Iterator[Tensors]:
        """Each tensor is gathered when it is asked for, by all workers, and kept by none. What goes
        wrong with them afterwards (no space left, another's version) is nothing to the others."""
        self._check(learner)
        failure: Exception | None = None
        with self._ordered(Gather()):
            gathered = Gathered(self._worker.group, learner)
            try:
                yield gathered
            except Exception as error:  # raised again below, once the others know
                if gathered.torn:
                    raise
                failure = error
            self._worker.group.told(-1)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Raises what broke the group, if it broke and somebody else started some of it: whoever
        did must know that this was no orderly end, and start all anew."""
        self._links.close(self._broken is None, timeout_s=0.0 if self._broken else 5.0)
        if self._broken is not None and self._gang:
            raise self._broken

    # --- orders -----------------------------------------------------------------------------------

    def _check(self, learner: Learner) -> None:
        if learner is not self._worker.learner:
            raise InternalError("the workers of this group hold another learner")

    def _at_once(self, order: Order) -> None:
        for _ in self._carry_out(order):
            raise AssertionError(f"{type(order).__name__} is done at once")

    def _carry_out(self, order: Order) -> Generator[None, None, Any]:
        with self._ordered(order) as work:
            return None if work is None else (yield from self._lead(work))

    def _lead(self, work: Steps) -> Generator[None, None, Any]:
        group = self._worker.group
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            try:
                yield
            except GeneratorExit:
                group.told(0)
                work.close()
                raise
            group.told(1)

    @contextlib.contextmanager
    def _ordered(self, order: Order) -> Iterator[Steps | None]:
        """Within it, all workers are at ``order``. Raises what an error of one comes to."""
        if self._broken is not None:
            raise self._broken
        self._links.tell(order)
        begun = False
        try:
            work = self._worker.prepare(order)
            begun = True
            yield work
        except GeneratorExit:
            self._settle(None, begun)
            raise
        except BaseException as error:
            if (worse := self._settle(error, begun)) is not None and worse is not error:
                raise worse from error
            raise
        if (failure := self._settle(None, begun)) is not None:
            raise failure

    def _settle(self, error: BaseException | None, begun: bool) -> BaseException | None:
        """Wait for the reports on an order that has ended here, with ``error`` or well, having been
        ``begun`` by all or by none; what it comes to: that error, or what caused it elsewhere."""
        reports = self._links.reports(COLLECTIVE_S if error is None else REPORT_S)
        with self._lock:
            self._ended += 1
        theirs = _first({rank: r.problem for rank, r in reports.items() if r.problem is not None})
        ours = None if error is None or isinstance(error, Apart) else as_error(error)
        if ours is not None and ours.category == "internal" and ours is not error:
            why = ours.detail  # most likely of a collective that others did not come to
            ours = None
        else:
            why = "its workers are out of step"
        if len(reports) < self._size - 1 or (begun and not _alike(error, reports.values())):
            self._break(ours or theirs or TransientError(f"the group of workers broke: {why}"))
        return (ours and error) or self._broken or theirs or error

    # --- news of followers ------------------------------------------------------------------------

    def lost(self, rank: int, why: str) -> None:
        self._break(TransientError(f"worker {rank} of {self._size} ended: {why}"))

    def failed(self, rank: int, problem: dict[str, Any]) -> None:
        with self._lock:
            order = self._ended

        def check() -> None:
            with self._lock:
                over = self._ended > order
            if not over:
                self._break(_named(rank, problem))

        timer = threading.Timer(FAILED_S, check)
        timer.daemon = True
        timer.start()

    def going(self, rank: int) -> None:
        _log.info("worker %d is told to go, so all are", rank)
        self._drain()

    def _break(self, error: RlhflessError) -> None:
        with self._lock:
            if self._broken is not None:
                return
            self._broken = error
        _log.error("%s", error.detail)
        self._links.interrupt()
        self._broke(error)


def _alike(error: BaseException | None, reports: Iterable[Report]) -> bool:
    """Whether all have come through an order in the same way, so that they are still in step. Who
    met an error that is none of ours cannot be sure of that."""
    if error is not None and not isinstance(error, RlhflessError):
        return False
    category = None if error is None else error.category
    problems = (report.problem for report in reports)
    return all((None if p is None else p.get("category")) == category for p in problems)


def _first(problems: Mapping[int, dict[str, Any]]) -> RlhflessError | None:
    return _named(min(problems), problems[min(problems)]) if problems else None


def _named(rank: int, problem: dict[str, Any]) -> RlhflessError:
    """A follower's error, as the call raises it."""
    error = from_problem(problem)
    error.detail = f"worker {rank}: {error.detail}"
    return error
