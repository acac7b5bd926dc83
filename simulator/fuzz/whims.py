"""Policies that decide at random: whatever a policy decides, no result may depend on it.

The real policies weigh their moves, so in small jobs they seldom make any. In some cases theirs are
replaced by whims, made at every look, sensible or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from scaling.actors import ActorDecision, choose
from scaling.items import Item, Items
from scaling.loads import ActorLoad, Move, MovePlan, Outlook
from scaling.plans import Situation
from scaling.release import ReleaseDecision

_NOTHING = Outlook(0.0, 0.0, 0.0)


@contextmanager
def whims(rng: random.Random, rate: float) -> Iterator[None]:
    """While this lasts, policies decide at random, moves with so high a chance for each sample. At
    rate 0 they are the real ones."""
    with ExitStack() as stack:
        if rate:
            for name, whim in _whims(rng, rate):
                stack.enter_context(patch(name, whim))
        yield


def _whims(rng: random.Random, rate: float) -> list[tuple[str, Callable[..., Any]]]:
    def move(loads: Sequence[ActorLoad], *_: object) -> MovePlan:
        moves = [
            Move(sample.id, load.name, target)
            for load in loads
            for sample in load.samples
            if rng.random() < rate
            and (target := rng.choice([each.name for each in loads])) != load.name
        ]
        rng.shuffle(moves)
        return MovePlan(tuple(moves), (), _NOTHING, _NOTHING, "a whim")

    def deal(samples: Sequence[Item] | Items, situation: Situation) -> ActorDecision:
        decision = choose(samples, situation)
        names = [name for share in decision.chosen.assignment for name in share]
        rng.shuffle(names)
        cuts = sorted(rng.randint(0, len(names)) for _ in range(situation.max_actors - 1))
        parts = [names[a:b] for a, b in zip([0, *cuts], [*cuts, len(names)], strict=True)]
        chosen = replace(decision.chosen, assignment=[part for part in parts if part])
        return replace(decision, chosen=chosen)

    def release(*_: object) -> ReleaseDecision:
        return ReleaseDecision(rng.random() < 0.5, None, 0.0, 0.0, "a whim")

    def prewarm(*_: object) -> float:
        return rng.choice((0.0, 0.0, rng.uniform(0, 2)))

    return [
        ("controller.rebalance.plan_moves", move),
        ("controller.planning.actors.choose", deal),
        ("controller.standby.decide", release),
        ("controller.standby.prewarm_at", prewarm),
    ]
