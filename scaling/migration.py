"""Moves of running samples between actors: vacate thin actors, relieve slow or crowded ones.

Cut-and-migrate (RLHFless, arXiv 2602.22718) and sample reallocation (RLHFSpec, arXiv 2512.04752)
by one objective: ``λ · T/T₀ + (1 − λ) · H/H₀``, where T is the predicted time until the last actor
is done and H the function-seconds held from now on: the sum of the actors' remaining seconds where
an actor is released when done, else their number times T. Which sample will be the last nobody
knows: T is the worst of what the actors' ends would be if it were one of theirs (``Running.late``),
so that no actor is crowded on the ground that others are expected to take longer.

A change takes samples from one actor, longest first (or last in its queue first), each to the actor
with room where the score becomes lowest; the best prefix of that sequence is made if the score
falls by the margin. First every actor is tried, the one that will be done soonest first: the whole
sequence vacates it, and it is released. Then the one that will be done last is relieved as long as
that gains. A sample moves at most once in a plan, so a plan ends; not again within a cool-down.
Actors from which no choice of samples can gain the margin (``scaling.move_bounds``) are not tried,
and at most ``MOST_ACTORS`` are in one plan: mostly there is nothing to move, and a look at
thousands of samples must cost little.

On its target a moved sample first waits ``steer_s``, and its prompt and the tokens it has are
prefilled there (or its prompt loaded), which holds up all that runs there.

Worked number: a sample with 400 tokens left, alone on its actor, iterations of 10 ms, a token 0.1
ms: 4.04 s held. Moved beside ten others that run for 5 s anyway it costs 0.04 s there, 0.05 s until
it is there and a prefill of 0.1 s: 3.8 s less held, the makespan 0.19 s longer.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scaling.arrays import Bools, Ints
from scaling.cost_model import CostModel
from scaling.load_state import LoadState
from scaling.loads import Loads, Move, MovePlan, MoveRules, Outlook
from scaling.move_bounds import MoveCosts, most_gained

MOST_TRIED = 64
"""Samples of one actor that a change may move: with more it is neither thin nor quickly relieved,
and the next look can go on."""
MOST_ACTORS = 16
"""Actors that a plan may try to vacate, and to relieve: likewise."""


def plan_moves(loads: Loads, cost: CostModel, rules: MoveRules) -> MovePlan:
    """The moves that pay, possibly none."""
    return _Planner(loads, cost, rules).plan()


class _Planner:
    def __init__(self, loads: Loads, cost: CostModel, rules: MoveRules) -> None:
        self._loads = loads
        self._rules = rules
        self._state = LoadState(loads, cost, rules)
        self._costs = MoveCosts(loads, cost, rules)
        self._targets: dict[int, int] = {}  # by sample
        self._movable = loads.moved_ago_s >= rules.cooldown_s
        self._least_s = self._costs.least()
        self._worth: Bools | None = None
        time_0, held_0 = rules.reference or self._totals(self._state)
        weight = rules.time_weight
        self._weights = (weight / max(time_0, 1e-9), (1 - weight) / max(held_0, 1e-9))
        """Of a second of the end, and of a function-second, in the score."""
        self._before = self._outlook(self._state)
        late = self._before.seconds > rules.latest_s
        self._latest_s = (1 - rules.margin) * self._before.seconds if late else rules.latest_s
        share = min(1.0, rules.margin_actors / max(1, len(loads)))
        self._least_gain = max(rules.margin * share * self._before.score, 1e-9)

    def plan(self) -> MovePlan:
        num_vacating = num_relieving = 0
        if not self._worth_trying().any():
            return self._planned(0, 0)
        if self._rules.vacate:
            tried = 0
            for source in np.argsort(self._state.seconds, kind="stable").tolist():
                if tried == MOST_ACTORS:
                    break
                if self._worth_trying()[source]:
                    tried += 1
                    num_vacating += self._change(source, self._longest_first(source))
        for _ in range(MOST_ACTORS if self._rules.rebalance else 0):
            source = int(np.argmax(self._state.end_s))
            if not self._worth_trying()[source]:
                break
            moved = self._change(source, self._longest_first(source)) or self._change(
                source, self._held_by(source)[::-1].tolist()
            )
            if not moved:
                break
            num_relieving += moved
        return self._planned(num_vacating, num_relieving)

    def _planned(self, num_vacating: int, num_relieving: int) -> MovePlan:
        loads, state = self._loads, self._state
        # Sums that were changed and changed back may differ in the last digit.
        after = self._outlook(state) if self._targets else self._before
        gain = 1 - after.score / self._before.score if self._before.score else 0.0
        moves = (
            Move(loads.ids[sample], loads.names[loads.actor[sample]], loads.names[target])
            for sample, target in self._targets.items()
        )
        had = np.bincount(loads.actor, minlength=len(loads)) > 0
        return MovePlan(
            moves=tuple(moves),
            vacated=tuple(
                loads.names[i] for i in np.flatnonzero(had & (state.count == 0)).tolist()
            ),
            before=self._before,
            after=after,
            reason=f"{num_vacating} moves to vacate, {num_relieving} to relieve: "
            f"score {100 * gain:.0f} % lower"
            if self._targets
            else "no change lowers the score by the margin",
        )

    def _change(self, source: int, order: Iterable[int]) -> int:
        """Move the best prefix of ``order`` away from ``source``; how many samples that was."""
        trial = self._state.copy()
        best_score, best_count = self._outlook(trial).score - self._least_gain, 0
        best: LoadState | None = None
        made: list[tuple[int, int]] = []
        for sample in order:
            if len(made) == MOST_TRIED:
                break
            trial.give(source, sample)
            target = self._bring(trial, source, sample)
            if target is None:
                trial.put_back(source, sample)
                continue
            made.append((sample, target))
            outlook = self._outlook(trial)
            if outlook.score < best_score and outlook.seconds <= self._latest_s:
                best_score, best_count, best = outlook.score, len(made), trial.copy()
            elif self._at_best(trial, source, outlook) >= best_score:
                break
        if best is not None:
            self._state = best
            self._targets |= made[:best_count]
            self._movable[[sample for sample, _ in made[:best_count]]] = False
            self._worth = None
        return best_count

    def _bring(self, trial: LoadState, source: int, sample: int) -> int | None:
        """Have a sample that ``source`` has let go of taken by whom the score becomes lowest."""
        room = trial.has_room(sample)
        room[source] = False
        if not room.any():
            return None
        prefill_s = self._costs.to_each(sample)
        seconds, ends_s = trial.if_taken(sample, prefill_s)
        end_s, held_s = self._totals(trial)
        late_s = np.maximum(end_s, ends_s)
        held = held_s + seconds - trial.seconds
        if not self._rules.early_release:
            held = len(self._loads) * late_s
        time_weight, held_weight = self._weights
        score = time_weight * late_s + held_weight * held
        in_time = room & (late_s <= self._latest_s)
        score = np.where(in_time if in_time.any() else room, score, np.inf)
        # Of equals (where only the end counts, most are) the one that is done soonest.
        equal = score <= score.min() * (1 + 1e-12)
        target = int(np.argmin(np.where(equal, ends_s, np.inf)))
        trial.take(target, sample, *(float(each[target]) for each in (prefill_s, seconds, ends_s)))
        return target

    def _at_best(self, trial: LoadState, source: int, outlook: Outlook) -> float:
        """What the score could still become if all that is left on ``source`` went for nothing."""
        time_weight, held_weight = self._weights
        others_s = trial.end_s.copy()
        others_s[source] = 0.0
        end_s = float(others_s.max())
        held_s = len(self._loads) * end_s
        if self._rules.early_release:
            held_s = outlook.held_s - float(trial.seconds[source])
        return time_weight * end_s + held_weight * held_s

    def _worth_trying(self) -> Bools:
        """``[A]``: whether taking samples from an actor could gain the margin."""
        if self._worth is None:
            gained = most_gained(
                self._loads,
                self._state,
                self._rules,
                self._movable,
                self._least_s,
                self._weights,
                self._latest_s,
            )
            self._worth = gained >= self._least_gain * (1 - 1e-6)
        return self._worth

    def _longest_first(self, source: int) -> list[int]:
        samples = self._held_by(source)
        rank = np.argsort(-self._loads.remaining[samples], kind="stable")
        return list(map(int, samples[rank]))

    def _held_by(self, source: int) -> Ints:
        """Samples that may be moved from an actor, in order of admission."""
        return np.flatnonzero((self._state.holder == source) & self._movable)

    def _totals(self, state: LoadState) -> tuple[float, float]:
        end_s = float(state.end_s.max(initial=0.0))
        if self._rules.early_release:
            return end_s, float(state.seconds.sum())
        return end_s, len(self._loads) * end_s

    def _outlook(self, state: LoadState) -> Outlook:
        seconds, held_s = self._totals(state)
        time_weight, held_weight = self._weights
        return Outlook(seconds, held_s, time_weight * seconds + held_weight * held_s)
