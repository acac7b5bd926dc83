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

On its target a moved sample first waits ``steer_s``, and its prompt and the tokens it has are
prefilled there (or its prompt loaded), which holds up all that runs there.

Worked number: a sample with 400 tokens left, alone on its actor, iterations of 10 ms, a token 0.1
ms: 4.04 s held. Moved beside ten others that run for 5 s anyway it costs 0.04 s there, 0.05 s until
it is there and a prefill of 0.1 s: 3.8 s less held, the makespan 0.19 s longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.cost_model import CostModel
from scaling.loads import ActorLoad, Move, MovePlan, MoveRules, Outlook, Running

MOST_TRIED = 64
"""Samples of one actor that a change may move: with more it is neither thin nor quickly relieved,
and the next look can go on."""


def plan_moves(loads: Sequence[ActorLoad], cost: CostModel, rules: MoveRules) -> MovePlan:
    """The moves that pay, possibly none."""
    return _Planner(loads, cost, rules).plan()


class _Actor:
    """An actor while moves are tried on it: sums that adding or taking a sample keeps current."""

    def __init__(self, load: ActorLoad, cost: CostModel, rules: MoveRules) -> None:
        self.load = load
        self._cost = cost
        self._rules = rules
        self.samples = {sample.id: sample for sample in load.samples}
        self._groups = {sample.group for sample in load.samples}
        self._had_work = bool(load.samples)
        self._incoming: dict[str, float] = {}
        self._loading_s = 0.0
        self._tokens = sum(s.remaining for s in load.samples)
        self._context = sum(map(_context, load.samples))
        self._kv = sum(s.held_tokens for s in load.samples)
        self._longest = max((s.remaining for s in load.samples), default=0.0)
        self._latest = max(map(_late, load.samples), default=0.0)
        self._measure()

    def has_room(self, sample: Running) -> bool:
        rows, kv_tokens = self.load.rows, self.load.kv_tokens
        return (
            self.load.accept
            and (not rows or len(self.samples) < rows)
            and (not kv_tokens or self._kv + sample.held_tokens <= kv_tokens)
        )

    def take(self, sample: Running) -> None:
        """Bring a sample here from elsewhere."""
        self._incoming[sample.id] = self._prefill(sample)
        self._add(sample, 1)

    def undo_take(self, sample: Running) -> None:
        del self._incoming[sample.id]
        self._add(sample, -1)

    def give(self, sample: Running) -> None:
        """Let a sample go elsewhere."""
        self._add(sample, -1)

    def undo_give(self, sample: Running) -> None:
        self._add(sample, 1)

    def _add(self, sample: Running, sign: int) -> None:
        self._tokens += sign * sample.remaining
        self._context += sign * _context(sample)
        self._kv += sign * sample.held_tokens
        if sign > 0:
            self.samples[sample.id] = sample
            self._longest = max(self._longest, sample.remaining)
            self._latest = max(self._latest, _late(sample))
        else:
            del self.samples[sample.id]
            left = self.samples.values()
            if sample.remaining >= self._longest:
                self._longest = max((s.remaining for s in left), default=0.0)
            if _late(sample) >= self._latest:
                self._latest = max(map(_late, left), default=0.0)
        self._measure()

    def _prefill(self, sample: Running) -> float:
        """Seconds to bring the context of a sample here."""
        cost, load_s = self._cost, self._rules.load_s.get(sample.group)
        if sample.group in self._groups:
            return cost.prefill_s(sample.generated)
        if load_s is not None and load_s < cost.prefill_s(sample.prompt_tokens, calls=0):
            return load_s + cost.prefill_s(sample.generated)
        return cost.prefill_s(sample.prompt_tokens + sample.generated)

    def _measure(self) -> None:
        """Expected ``seconds`` until it is done, and ``end_s`` should it have the last sample."""
        if not self.samples:
            # Whoever gave everything away is held until it is told.
            self.seconds = self.end_s = self._rules.steer_s if self._had_work else 0.0
            return
        iterations = self._longest
        if self.load.rows and len(self.samples) > self.load.rows:
            iterations = max(iterations, self._tokens / self.load.rows)
        decode_s = self._cost.decode_s(iterations, self._tokens, self._context)
        arrivals = self._rules.steer_s + sum(self._incoming.values()) if self._incoming else 0.0
        self.seconds = self.load.ready_s + arrivals + self.load.slowdown * decode_s
        more = self._cost.decode_s(max(0.0, self._latest - iterations), 0, 0)
        self.end_s = self.seconds + self.load.slowdown * more


class _Planner:
    def __init__(self, loads: Sequence[ActorLoad], cost: CostModel, rules: MoveRules) -> None:
        self._rules = rules
        self._actors = [_Actor(load, cost, rules) for load in loads]
        self._moves: dict[str, Move] = {}
        seconds, held = self._totals()
        self._reference = rules.reference or (seconds, held)
        self._before = self._outlook()
        self._latest_s = max(rules.latest_s, self._before.seconds)
        self._least_gain = max(rules.margin * self._before.score, 1e-9)

    def plan(self) -> MovePlan:
        num_vacating = num_relieving = 0
        if self._rules.vacate:
            for source in sorted(self._actors, key=lambda actor: actor.seconds):
                num_vacating += self._change(source, _longest_first(source))
        while self._rules.rebalance and self._actors:
            source = max(self._actors, key=lambda actor: actor.end_s)
            moved = self._change(source, _longest_first(source)) or self._change(
                source, reversed(list(source.samples.values()))
            )
            if not moved:
                break
            num_relieving += moved
        # Sums that were changed and changed back may differ in the last digit.
        after = self._outlook() if self._moves else self._before
        gain = 1 - after.score / self._before.score if self._before.score else 0.0
        return MovePlan(
            moves=tuple(self._moves.values()),
            vacated=tuple(
                actor.load.name
                for actor in self._actors
                if actor.load.samples and not actor.samples
            ),
            before=self._before,
            after=after,
            reason=f"{num_vacating} moves to vacate, {num_relieving} to relieve: "
            f"score {100 * gain:.0f} % lower"
            if self._moves
            else "no change lowers the score by the margin",
        )

    def _change(self, source: _Actor, order: Iterable[Running]) -> int:
        """Move the best prefix of ``order`` away from ``source``; how many samples that was."""
        best_score, best_count = self._outlook().score - self._least_gain, 0
        made: list[tuple[Running, _Actor]] = []
        for sample in list(order):
            if len(made) == MOST_TRIED or not self._may_move(sample):
                continue
            source.give(sample)
            target = self._best_target(source, sample)
            if target is None:
                source.undo_give(sample)
                continue
            target.take(sample)
            made.append((sample, target))
            outlook = self._outlook()
            if outlook.score < best_score and outlook.seconds <= self._latest_s:
                best_score, best_count = outlook.score, len(made)
        for sample, target in reversed(made[best_count:]):
            target.undo_take(sample)
            source.undo_give(sample)
        for sample, target in made[:best_count]:
            self._moves[sample.id] = Move(sample.id, source.load.name, target.load.name)
        return best_count

    def _may_move(self, sample: Running) -> bool:
        rested = sample.moved_ago_s is None or sample.moved_ago_s >= self._rules.cooldown_s
        return rested and sample.id not in self._moves

    def _best_target(self, source: _Actor, sample: Running) -> _Actor | None:
        """Where the score becomes lowest; ``source`` has let go of the sample already."""
        best, best_key = None, (True, float("inf"))
        for target in self._actors:
            if target is source or not target.has_room(sample):
                continue
            target.take(sample)
            outlook = self._outlook()
            target.undo_take(sample)
            key = (outlook.seconds > self._latest_s, outlook.score)
            if key < best_key:
                best, best_key = target, key
        return best

    def _totals(self) -> tuple[float, float]:
        end_s = max((actor.end_s for actor in self._actors), default=0.0)
        if self._rules.early_release:
            return end_s, sum(actor.seconds for actor in self._actors)
        return end_s, len(self._actors) * end_s

    def _outlook(self) -> Outlook:
        seconds, held = self._totals()
        time_0, held_0 = (max(value, 1e-9) for value in self._reference)
        weight = self._rules.time_weight
        score = weight * seconds / time_0 + (1 - weight) * held / held_0
        return Outlook(seconds, held, score)


def _longest_first(actor: _Actor) -> list[Running]:
    return sorted(actor.samples.values(), key=lambda sample: -sample.remaining)


def _late(sample: Running) -> float:
    return max(sample.late, sample.remaining)


def _context(sample: Running) -> float:
    """Tokens attended to until the sample ends."""
    return (sample.prompt_tokens + sample.generated + sample.remaining / 2) * sample.remaining
