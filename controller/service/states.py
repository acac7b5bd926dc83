"""A job's states, and which may follow which. No I/O: ``controller.service.registry`` keeps them.

queued ──> running ──> pausing ──> paused        paused goes back to queued
  │           │           │           │
  └───────────┴───────────┴───────────┴──> succeeded, failed, cancelled
"""

from __future__ import annotations

from typing import Literal, get_args

State = Literal["queued", "running", "pausing", "paused", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)

MEANING: dict[State, str] = {
    "queued": "Accepted, and waiting for its share of the instances.",
    "running": "Some replica drives it, or will again after the one that did was lost.",
    "pausing": "Asked to pause; its open step is being finished.",
    "paused": "Holds no instance, and goes on from its last step when it is resumed.",
    "succeeded": "Every step is committed and its weights can be had.",
    "failed": "Ended by an error or its budget; its checkpoints can be had.",
    "cancelled": "Ended by its owner; its checkpoints can be had.",
}

FINAL: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
"""Nothing follows these."""

_NEXT: dict[State, frozenset[State]] = {
    # A job that waits has nothing to finish: it pauses at once.
    "queued": frozenset({"running", "paused", "failed", "cancelled"}),
    # Back to queued: its instances went to others. Paused at once: its budget is spent.
    "running": frozenset({"queued", "pausing", "paused", "succeeded", "failed", "cancelled"}),
    # Running: resumed before the step ended. Succeeded: that step was the last.
    "pausing": frozenset({"running", "paused", "succeeded", "failed", "cancelled"}),
    "paused": frozenset({"queued", "failed", "cancelled"}),
    **{state: frozenset[State]() for state in FINAL},
}


def may_follow(old: State, new: State) -> bool:
    """Whether a job may go from one state to another, different one."""
    return new in _NEXT[old]
