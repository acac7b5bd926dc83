"""Which steps of a long job are simulated, and what each of them stands for.

A shorter job stands for the whole: its first steps are the job's first (cold starts, policies that
know nothing yet) and its last is the job's last; the others are spread evenly over the rest, with
the lengths of the steps they stand for. One of them saves a checkpoint and stands for those that
do. It has a share of the prompts, so that each is visited as often as in the whole job.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 3
"""Steps at the beginning that stand for themselves alone, where so many are simulated."""
FEWEST = 4
"""Steps to simulate at least: the first, an ordinary one, one that saves a checkpoint, the last."""

USUAL, USUAL_SAMPLES = 10, 100_000
"""Steps to simulate where nobody says how many, and samples they may have in all."""


def usual_steps(samples_per_step: int) -> int:
    """How many steps of a long job to simulate: fewer of those that take long to simulate."""
    return max(FIRST + 3, min(USUAL, USUAL_SAMPLES // samples_per_step))


@dataclass(frozen=True)
class Chosen:
    """Of a job's ``steps``, ``of[k]`` is the one that the k-th simulated step is, and
    ``weights[k]`` how many it speaks for. ``checkpoint_every``: of the shorter job."""

    steps: int
    of: tuple[int, ...]
    weights: tuple[float, ...]
    checkpoint_every: int


def choose_steps(steps: int, most: int | None, checkpoint_every: int) -> Chosen:
    """All steps, or ``most`` of them (``FEWEST`` at least)."""
    if most is None or steps <= max(most, FEWEST):
        return Chosen(steps, tuple(range(steps)), (1.0,) * steps, checkpoint_every)
    simulated = max(most, FEWEST)
    first = min(FIRST, simulated - 3)
    left = steps - first - 1
    saving = 0.0
    if checkpoint_every > 1:
        saving = left / checkpoint_every  # on average, wherever the first of them falls
        checkpoint_every = simulated - 1
    ordinary = simulated - first - 1 - (1 if saving else 0)
    each = left / ordinary
    spread = [first + int((k + 0.5) * each) for k in range(ordinary)]
    weights = [(left - saving) / ordinary] * ordinary
    if saving:
        spread.append(spread[-1])
        weights.append(saving)
    return Chosen(
        steps,
        (*range(first), *spread, steps - 1),
        (1.0,) * first + tuple(weights) + (1.0,),
        checkpoint_every,
    )


def fewer_prompts(num_prompts: int, per_step: int, chosen: Chosen) -> int:
    """As many prompts as let the simulated steps visit each as often as the whole job would."""
    simulated = len(chosen.of)
    if simulated == chosen.steps:
        return num_prompts
    visits = chosen.steps * per_step / num_prompts
    if visits <= 1:
        return num_prompts
    return min(num_prompts, max(per_step, round(simulated * per_step / visits)))
