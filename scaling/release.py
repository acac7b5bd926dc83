"""Whether an instance that has nothing to do is let go, and when it is started again.

Keeping it costs the idle seconds until it is needed; letting it go costs a cold start, held but of
no use, and delays the next phase by what of the start cannot be hidden by starting ahead. Both are
weighed like every plan: λ · delay / T₀ + (1 − λ) · held / C₀, with T₀ and C₀ the seconds and
function-seconds of a step. Worked number: λ = 0.5, T₀ = 60 s, C₀ = 240 s, a gap of 30 s, a start
of 8 s: keeping scores 0.5 · 30/240 = 0.0625. Letting go and starting again 10 s before the end of
the gap scores 0.5 · 10/240 = 0.021; starting on demand 0.5 · 8/240 + 0.5 · 8/60 = 0.083.
"""

from __future__ import annotations

from dataclasses import dataclass

WORTH = 2.0
"""A gap must be longer than this many starts: it is a prediction, and what a start takes from its
neighbours' cores, disk and network is in no model."""
MIN_GAP_S = 1.5
"""Nor is anything let go for less: a fresh instance's first call is slower by first uses (page
faults, thread pools, kernels) that no measurement here tells apart."""
SAFETY = 1.25
"""Starts are begun this factor of their predicted duration ahead."""


@dataclass(frozen=True)
class Gap:
    """An idle stretch: ``gap_s`` seconds until the instance is needed (None: never again),
    ``cold_start_s`` to start one, and whether the start can be hidden by starting ahead."""

    gap_s: float | None
    cold_start_s: float
    hidden: bool = True


@dataclass(frozen=True)
class ReleaseDecision:
    """``prewarm_s``: seconds from now at which to start again; None where the instance stays, or
    is never needed, or starts on demand."""

    release: bool
    prewarm_s: float | None
    keep_score: float
    release_score: float
    reason: str


def decide(
    gap: Gap, time_weight: float, reference_s: float, reference_held_s: float
) -> ReleaseDecision:
    """Keep or let go. ``reference_s`` and ``reference_held_s``: T₀ and C₀ of the objective."""
    if gap.gap_s is None:
        return ReleaseDecision(True, None, 0.0, 0.0, "it is not needed again")
    held_0, time_0 = max(reference_held_s, 1e-9), max(reference_s, 1e-9)
    prewarm_s = prewarm_at(gap.gap_s, gap.cold_start_s) if gap.hidden else None
    ready_s = gap.cold_start_s + (gap.gap_s if prewarm_s is None else prewarm_s)
    delay_s = max(0.0, ready_s - gap.gap_s)
    # Started with time to spare, it is held for that as well.
    held_s = gap.cold_start_s + max(0.0, gap.gap_s - ready_s)
    keep = (1 - time_weight) * gap.gap_s / held_0
    release = (1 - time_weight) * held_s / held_0 + time_weight * delay_s / time_0
    if release < keep and gap.gap_s > max(MIN_GAP_S, WORTH * gap.cold_start_s):
        reason = f"{gap.gap_s:.1f} s idle cost more than a start of {gap.cold_start_s:.1f} s"
        return ReleaseDecision(True, prewarm_s, keep, release, reason)
    reason = f"{gap.gap_s:.1f} s idle are not worth a start of {gap.cold_start_s:.1f} s"
    return ReleaseDecision(False, None, keep, release, reason)


def prewarm_at(gap_s: float, cold_start_s: float) -> float:
    """Seconds from now to begin a start that should be over when the gap ends; 0: now."""
    return max(0.0, gap_s - SAFETY * cold_start_s)
