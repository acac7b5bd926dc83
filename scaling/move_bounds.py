"""What moving samples costs, and what moving any of an actor's samples could gain at most.

The bound is what lets a look at thousands of samples end without a single move tried. For any
choice M of an actor's samples, let m be how many of its longest in a row are in M. Then

- its iterations stay as many as its (m+1)-th longest has tokens, and whoever gets its longest
  makes as many as that has;
- each sample of M takes as long elsewhere as it takes on the quickest other actor, and its context
  has to be brought there;
- the end is no sooner than that of any other actor now, nor than the mean of those that could take
  samples once they have M, nor than its own sample that may be last ends, wherever that is.

All of it only gets worse for what M holds beside its longest m, except that a slow actor gains by
giving away any sample; those gains are all counted. So the largest over m bounds every M.
"""

from __future__ import annotations

import numpy as np

from scaling.arrays import Bools, Floats, Ints, pairs, sums_by
from scaling.cost_model import CostModel
from scaling.load_state import LoadState
from scaling.loads import Loads, MoveRules


class MoveCosts:
    """Seconds to bring a sample's context to an actor."""

    def __init__(self, loads: Loads, cost: CostModel, rules: MoveRules) -> None:
        self._loads = loads
        self._having: dict[int, Bools] = {}
        call_s, token_s = cost.coefficients["prefill"]
        self._again_s = call_s + token_s * loads.generated
        """``[N]``: where the prompt is."""
        computed_s = self._again_s + token_s * loads.prompt_tokens
        load_s = loads.by_group(rules.load_s)
        loaded_s = np.where(load_s < token_s * loads.prompt_tokens, load_s + self._again_s, np.inf)
        self._anew_s = np.minimum(computed_s, loaded_s)
        """``[N]``: where it is not."""

    def to_each(self, sample: int) -> Floats:
        """``[A]``: to every actor."""
        loads = self._loads
        group = int(loads.group[sample])
        if group not in self._having:
            having = np.zeros(len(loads), np.bool_)
            having[loads.actor[loads.group == group]] = True
            self._having[group] = having
        each: Floats = np.where(self._having[group], self._again_s[sample], self._anew_s[sample])
        return each

    def least(self) -> Floats:
        """``[N]``: to whichever other actor that is quickest."""
        loads = self._loads
        _, group, _ = pairs(loads.actor, loads.group, int(loads.group.max(initial=0)) + 1)
        return np.where(np.bincount(group)[loads.group] > 1, self._again_s, self._anew_s)


def most_gained(
    loads: Loads,
    state: LoadState,
    rules: MoveRules,
    movable: Bools,
    least_s: Floats,
    weights: tuple[float, float],
    latest_s: float,
) -> Floats:
    """``[A]``: what the score could fall by at most if samples left an actor; -inf where none may.

    ``movable[N]``; ``least_s[N]``: ``MoveCosts.least``; ``weights``: of a second of the end and of
    a function-second in the score; no change may put the end off beyond ``latest_s``.
    """
    size = len(loads)
    targets = loads.accept & ((loads.rows == 0) | (state.count < loads.rows))
    others = _Others(targets, loads, state)
    free = np.where(loads.rows > 0, np.maximum(0, loads.rows - state.count), len(loads.ids))
    free = np.where(loads.accept, free, 0)
    room = free.sum() - free
    order = np.flatnonzero(movable)
    order = order[np.lexsort((-loads.remaining[order], state.holder[order]))]
    actor = state.holder[order]
    remaining, marginal_s, prefill_s = (
        values[order] for values in (loads.remaining, state.marginal_s, least_s)
    )
    iteration_s = state.iteration_s
    crowded = (loads.rows > 0) & (state.count > loads.rows)
    # What each sample saves where it is and costs elsewhere, its iterations apart.
    faster = (loads.slowdown - others.slowdown)[actor]
    net_s = faster * marginal_s - prefill_s
    share_s = iteration_s[actor] * remaining / np.maximum(loads.rows, 1)[actor]
    net_s = np.where(crowded[actor], net_s + share_s, net_s)
    anyway_s = np.maximum(0.0, net_s)
    there_s = others.slowdown[actor] * marginal_s + prefill_s

    # Sums over the longest m of an actor's samples, m = 1 ..
    starts = np.flatnonzero(np.diff(actor, prepend=-1))
    first = np.zeros(len(order), np.int64)
    first[starts] = starts
    first = np.maximum.accumulate(first)
    forced_s = _running_sums(net_s - anyway_s, first)
    moved_s = _running_sums(there_s, first)
    following = np.zeros(len(order))
    same = actor[1:] == actor[:-1]
    following[:-1][same] = remaining[1:][same]
    fixed = np.zeros(size)
    np.maximum.at(fixed, state.holder[~movable], loads.remaining[~movable])
    iterations = state.iterations()
    spared = iterations[actor] - np.maximum(following, fixed[actor])
    # Where samples wait for rows, shares of the tokens count instead; what is longer is spared.
    excess = iterations - state.mean_iterations()
    spared = np.where(crowded[actor], excess[actor], spared)
    total_s = sums_by(actor, anyway_s, size)
    held_s = iteration_s[actor] * spared + forced_s + total_s[actor]
    longer = np.maximum(0.0, remaining[first] - others.longest[actor])
    held_s -= others.iteration_s[actor] * longer
    number = np.arange(len(order)) - first + 1
    emptied = number == state.count[actor]
    at_once_s = state.seconds - iteration_s * iterations - state.rest_s - rules.steer_s
    held_s = np.where(emptied, held_s + at_once_s[actor], held_s)

    latest_end_s = _latest_end_s(loads, state, others, movable, least_s + rules.steer_s)
    fits = number <= room[actor]
    gained = np.full(size, -np.inf)
    none_yet = np.flatnonzero(sums_by(actor, np.ones(len(order)), size) > 0)
    now_s = float(state.end_s.max(initial=0.0))
    for who, held, brought_s in (
        (none_yet, np.where(crowded, iteration_s * excess, 0.0)[none_yet] + total_s[none_yet], 0.0),
        (actor[fits], held_s[fits], moved_s[fits]),
    ):
        mean_s = (others.sum_s[who] + brought_s) / np.maximum(others.number, 1)[who]
        end_s = np.maximum(mean_s, np.maximum(others.end_s, latest_end_s)[who])
        sooner_s = now_s - end_s
        spared_s = held if rules.early_release else size * sooner_s
        gain = weights[0] * sooner_s + weights[1] * spared_s
        gain = np.where((others.number[who] > 0) & (end_s <= latest_s), gain, -np.inf)
        np.maximum.at(gained, who, gain)
    return gained


def _running_sums(values: Floats, first: Ints) -> Floats:
    """Sums from each actor's first sample on."""
    sums = np.cumsum(values)
    return sums - (sums - values)[first]


def _latest_end_s(
    loads: Loads, state: LoadState, others: _Others, movable: Bools, arrival_s: Floats
) -> Floats:
    """``[A]``: seconds before which an actor's sample that may be the last cannot end, here or on
    any other actor."""
    ends_s = np.zeros(len(loads))
    order = np.lexsort((loads.last, state.holder))
    last = order[np.flatnonzero(np.diff(state.holder[order], append=-1))]  # of each actor
    actor = state.holder[last]
    here_s = loads.ready_s[actor] + state.iteration_s[actor] * loads.last[last]
    here_s += loads.slowdown[actor] * state.marginal_s[last]
    there_s = others.begin_s[actor] + others.iteration_s[actor] * loads.last[last]
    there_s += others.slowdown[actor] * state.marginal_s[last] + arrival_s[last]
    ends_s[actor] = np.where(movable[last], np.minimum(here_s, there_s), here_s)
    return ends_s


class _Others:
    """By actor, of all others: ``end_s``: the last of their ends. Of those of them that could take
    samples: the least ``slowdown``, ``iteration_s`` and ``begin_s`` (what else they do takes so
    long), the longest sample, and ``number`` and ``sum_s`` of their ends."""

    def __init__(self, targets: Bools, loads: Loads, state: LoadState) -> None:
        self.end_s = _least_of_others(-state.end_s, 0.0) * -1.0
        self.slowdown = _least_of_others(np.where(targets, loads.slowdown, np.inf), 1.0)
        self.iteration_s = _least_of_others(np.where(targets, state.iteration_s, np.inf), 0.0)
        begin_s = loads.ready_s + state.rest_s
        self.begin_s = _least_of_others(np.where(targets, begin_s, np.inf), 0.0)
        self.longest = -_least_of_others(np.where(targets, -state.longest, np.inf), 0.0)
        end_s = np.where(targets, state.end_s, 0.0)
        self.number = targets.sum() - targets
        self.sum_s = end_s.sum() - end_s


def _least_of_others(values: Floats, without: float) -> Floats:
    """By place, the least of all other values; ``without`` where there is none."""
    if len(values) < 2:
        return np.full(len(values), without)
    lowest = np.argmin(values)
    others = np.full(len(values), values[lowest])
    others[lowest] = np.delete(values, lowest).min()
    return np.where(np.isfinite(others), others, without)
