"""Garbage collection for a process that holds a step's samples."""

from __future__ import annotations

import gc

THRESHOLDS = 50_000, 20, 50
"""Objects made and not freed, and collections of the younger generations, before one of each."""


def collect_rarely() -> None:
    """Once a process. Millions of short-lived objects, hardly any of which is in a cycle: looking
    for those after every 700, as Python does by itself, takes an eighth of the CPU time of a step
    of 16,384 samples (``docs/scale.md``)."""
    gc.set_threshold(*THRESHOLDS)
