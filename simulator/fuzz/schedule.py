"""From a seed to a job, its world, and everything that will go wrong with it.

Swarm testing (Groce et al. 2012): each seed switches on a few kinds of faults, at rates that differ
by orders of magnitude, because a schedule in which everything fails all the time never gets far
enough to meet the rare ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controller.job import Prompt
from rlhfless.measurements import Measurements
from rlhfless.spec import JobSpec
from simulator.fuzz.jobs import (
    FuzzLengths,
    Sharing,
    log_uniform,
    make_measurements,
    make_prompts,
    make_spec,
)

NETWORK_FAULTS = (
    "refused", "lost_before", "lost_amid", "lost_reply", "orphaned", "slow_frame", "split",
    "repeated",
)  # fmt: skip
STEER_FAULTS = ("steer_refused", "steer_slow", "steer_repeated", "steer_unheard")
STORE_FAULTS = (
    "journal_slow", "journal_lost", "journal_full", "journal_unheard",
    "objects_lost", "objects_full", "objects_unheard", "samples_full",
)  # fmt: skip
INSTANCE_FAULTS = ("crash", "preempt")
"""Rates of these are per second of virtual time."""
CLUSTERS: tuple[tuple[Sharing, int], ...] = (
    ("unlimited", 1), ("unlimited", 16), ("exclusive", 16), ("time_shared", 16), ("time_shared", 2),
)  # fmt: skip


Ending = Literal["lives", "killed", "stopped", "stale"]


@dataclass(frozen=True)
class Fate:
    """Of one controller: ``killed`` at its ``crossing``-th effect; ``stopped`` in order after
    ``after_s``; ``stale``: taken for dead after ``after_s``, though it goes on until ``crossing``,
    if it gets so far."""

    ending: Ending
    crossing: int = 0
    after_s: float = 0.0


@dataclass(frozen=True)
class Case:
    """A fuzzed job on so many ``nodes`` of an accelerator each. ``spot``: preemptions an hour of
    each node that is; ``straggler``: their share and how much slower they are. ``rates`` of faults,
    ``budget`` of them. ``thread_s``: mean seconds of work in threads. ``linger_s``: instances of a
    killed controller die after so long. ``whims``: chance that a sample is moved at a look,
    ``simulator.fuzz.whims``; 0: the real policies decide. ``changes``: whether the job is resumed
    with other limits and switches each time."""

    seed: int
    spec: JobSpec
    prompts: tuple[Prompt, ...]
    evaluation: tuple[Prompt, ...]
    lengths: FuzzLengths
    measurements: Measurements
    nodes: int
    sharing: Sharing
    spot: float
    straggler: tuple[float, float]
    rates: Mapping[str, float]
    budget: int
    thread_s: float
    linger_s: float
    whims: float
    changes: bool
    fates: tuple[Fate, ...]

    @property
    def alone(self) -> bool:
        """Whether no two controllers ever run at once."""
        return all(fate.ending != "stale" for fate in self.fates)


def make_case(seed: int) -> Case:
    rng = random.Random(f"rlhfless fuzz {seed}")
    max_tokens = rng.choice((1, 8, 32, 64, 64))
    iteration_s = log_uniform(rng, 0.5, 20) / max(8, max_tokens)
    slow = rng.choice((0.0, 0.0, 0.3))
    # A deadline must leave room for the prefill and some tokens.
    deadline_s = rng.choice((600.0, 600.0 if slow else 1 + 30 * iteration_s))
    spec = make_spec(rng, max_tokens, deadline_s)
    sharing, nodes = rng.choice(CLUSTERS)
    prompts = make_prompts(rng, "dataset", rng.randint(1, 8))
    evaluation = make_prompts(rng, "evaluation", rng.randint(1, 3)) if spec.evaluation else ()
    return Case(
        seed=seed,
        spec=spec,
        prompts=prompts,
        evaluation=evaluation,
        lengths=FuzzLengths(rng.getrandbits(32), max_tokens, rng.choice((1, 4, 12))),
        measurements=make_measurements(rng, iteration_s),
        nodes=nodes,
        sharing=sharing,
        spot=rng.choice((0.0, 0.0, 0.0, 200.0)),
        straggler=(slow, rng.choice((1.5, 5.0, 30.0))),
        rates=_rates(rng),
        budget=round(log_uniform(rng, 1, 60)),
        thread_s=rng.choice((0.0, 0.002, 0.05)),
        linger_s=rng.choice((0.0, 0.0, 0.5)),
        whims=rng.choice((0.0, 0.0, 0.1, 0.3, 0.6)),
        changes=rng.random() < 0.4,
        fates=_fates(rng),
    )


def _rates(rng: random.Random) -> dict[str, float]:
    if rng.random() < 0.1:
        return {}
    rates = {kind: log_uniform(rng, 0.002, 0.2) for kind in NETWORK_FAULTS if rng.random() < 0.3}
    rates |= {kind: log_uniform(rng, 0.05, 0.5) for kind in STEER_FAULTS if rng.random() < 0.3}
    rates |= {kind: log_uniform(rng, 0.002, 0.05) for kind in STORE_FAULTS if rng.random() < 0.15}
    if "samples_full" in rates:  # a step keeps them once
        rates["samples_full"] *= 10
    rates |= {kind: log_uniform(rng, 0.01, 1) for kind in INSTANCE_FAULTS if rng.random() < 0.25}
    return rates


def _fates(rng: random.Random) -> tuple[Fate, ...]:
    """Of the first controllers; those after them live."""
    if rng.random() < 0.4:
        return ()
    endings: tuple[Ending, ...] = rng.choice(
        (
            ("killed",),
            ("killed",),
            ("killed", "stopped"),
            ("stale",),
            ("killed", "stopped", "stale"),
        )
    )
    return tuple(
        Fate(
            rng.choice(endings),
            crossing=round(log_uniform(rng, 1, 600)),
            after_s=log_uniform(rng, 0.01, 20),
        )
        for _ in range(rng.randint(1, 4))
    )
