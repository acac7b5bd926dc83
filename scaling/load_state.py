"""Actors' loads while moves are tried on them: sums that adding or taking a sample keeps current.

Everything is in arrays over the actors, so that all targets of a sample are weighed at once. Shapes
as in ``scaling.loads``: ``A`` actors, ``N`` samples.
"""

from __future__ import annotations

import copy

import numpy as np

from scaling.arrays import Bools, Floats, Ints, sums_by
from scaling.cost_model import CostModel
from scaling.loads import Loads, MoveRules

_CHANGING = (
    "holder",
    "count",
    "longest",
    "seconds",
    "end_s",
    "_tokens",
    "_latest",
    "_kv",
    "rest_s",
    "_incoming",
    "_incoming_s",
)


class LoadState:
    """``seconds[A]``: expected until an actor is done; ``end_s[A]``: should it have the last sample
    of all. ``count[A]``: samples that each has; ``holder[N]``: who has a sample, -1 nobody."""

    def __init__(self, loads: Loads, cost: CostModel, rules: MoveRules) -> None:
        self._loads = loads
        self._steer_s = rules.steer_s
        iteration_s, token_s, context_s = cost.coefficients["decode"]
        self.iteration_s = iteration_s * loads.slowdown
        """``[A]``."""
        self.marginal_s = token_s * loads.remaining + context_s * loads.context
        """``[N]``: seconds that a sample takes in any batch, slowdowns apart."""
        size = len(loads)
        self.holder = loads.actor.copy()
        self.count: Ints = np.bincount(loads.actor, minlength=size)
        self.longest = maxima(loads, loads.remaining)
        self._tokens = sums_by(loads.actor, loads.remaining, size)
        self._latest = maxima(loads, loads.last)
        self._had_work = self.count > 0
        self._kv = sums_by(loads.actor, loads.held_tokens, size)
        self.rest_s = loads.slowdown * sums_by(loads.actor, self.marginal_s, size)
        """``[A]``: seconds of decoding that are not of iterations."""
        self._incoming = np.zeros(size, np.int64)
        self._incoming_s = np.zeros(size)
        iterations = self.iterations()
        seconds = loads.ready_s + self.rest_s + self.iteration_s * iterations
        more_s = self.iteration_s * np.maximum(0.0, self._latest - iterations)
        self.seconds = np.where(self._had_work, seconds, 0.0)
        self.end_s = np.where(self._had_work, seconds + more_s, 0.0)

    def copy(self) -> LoadState:
        other = copy.copy(self)
        for name in _CHANGING:
            setattr(other, name, getattr(self, name).copy())
        return other

    def iterations(self) -> Floats:
        """``[A]``: as many as the longest has tokens, or more where samples wait for rows."""
        rows = self._loads.rows
        waits = (rows > 0) & (self.count > rows)
        return np.where(waits, np.maximum(self.longest, self.mean_iterations()), self.longest)

    def mean_iterations(self) -> Floats:
        """``[A]``: of each row, were all rows busy to the end."""
        return self._tokens / np.maximum(self._loads.rows, 1)

    def has_room(self, sample: int) -> Bools:
        """``[A]``: who could take a sample."""
        loads = self._loads
        row = (loads.rows == 0) | (self.count < loads.rows)
        memory = self._kv + loads.held_tokens[sample] <= loads.kv_tokens
        room: Bools = loads.accept & row & (memory | (loads.kv_tokens == 0))
        return room

    def give(self, source: int, sample: int) -> None:
        """Let a sample go elsewhere; nobody has it then."""
        self._add(source, sample, -1)
        left = np.flatnonzero(self.holder == source)
        self.longest[source] = self._loads.remaining[left].max(initial=0.0)
        self._latest[source] = self._loads.last[left].max(initial=0.0)
        self._measure(source)

    def put_back(self, source: int, sample: int) -> None:
        """Undo ``give``."""
        self._add(source, sample, 1)
        self._measure(source)

    def take(
        self, target: int, sample: int, prefill_s: float, seconds: float, end_s: float
    ) -> None:
        """Bring a sample that nobody has to an actor with room; ``prefill_s`` is what its context
        takes there, ``seconds`` and ``end_s`` are as ``if_taken`` has them."""
        self._incoming[target] += 1
        self._incoming_s[target] += prefill_s
        self._add(target, sample, 1)
        self.seconds[target], self.end_s[target] = seconds, end_s

    def if_taken(self, sample: int, prefill_s: Floats) -> tuple[Floats, Floats]:
        """``[A]`` each: ``seconds`` and ``end_s`` of every actor that has room, would it take the
        sample and its context take it ``prefill_s[A]``."""
        loads = self._loads
        longest = np.maximum(self.longest, loads.remaining[sample])
        latest = np.maximum(self._latest, loads.last[sample])
        rest_s = self.rest_s + self.marginal_s[sample] * loads.slowdown
        arrivals_s = self._steer_s + self._incoming_s + prefill_s
        # Whoever has room has a row for each: nobody waits.
        seconds = loads.ready_s + arrivals_s + rest_s + self.iteration_s * longest
        return seconds, seconds + self.iteration_s * np.maximum(0.0, latest - longest)

    def _add(self, actor: int, sample: int, sign: int) -> None:
        loads = self._loads
        self.holder[sample] = actor if sign > 0 else -1
        self.count[actor] += sign
        self._tokens[actor] += sign * loads.remaining[sample]
        self._kv[actor] += sign * loads.held_tokens[sample]
        self.rest_s[actor] += sign * self.marginal_s[sample] * loads.slowdown[actor]
        if sign > 0:
            self.longest[actor] = max(self.longest[actor], loads.remaining[sample])
            self._latest[actor] = max(self._latest[actor], loads.last[sample])

    def _measure(self, actor: int) -> None:
        """Bring an actor's times up to date. Plain numbers: it is one of many thousand times."""
        loads, count = self._loads, int(self.count[actor])
        if not count:
            # Whoever gave everything away is held until it is told.
            idle_s = self._steer_s if self._had_work[actor] else 0.0
            self.seconds[actor] = self.end_s[actor] = idle_s
            return
        rows, iterations = int(loads.rows[actor]), float(self.longest[actor])
        if 0 < rows < count:
            iterations = max(iterations, float(self._tokens[actor]) / rows)
        seconds = float(loads.ready_s[actor]) + float(self.rest_s[actor])
        if self._incoming[actor]:
            seconds += self._steer_s + float(self._incoming_s[actor])
        iteration_s = float(self.iteration_s[actor])
        seconds += iteration_s * iterations
        self.seconds[actor] = seconds
        more = max(0.0, float(self._latest[actor]) - iterations)
        self.end_s[actor] = seconds + iteration_s * more


def maxima(loads: Loads, values: Floats) -> Floats:
    """``[A]``: the largest of ``values[N]`` of each actor's samples; 0 where it has none."""
    largest = np.zeros(len(loads))
    starts = np.flatnonzero(np.diff(loads.actor, prepend=-1))
    if len(starts):
        largest[loads.actor[starts]] = np.maximum.reduceat(values, starts)
    return largest
