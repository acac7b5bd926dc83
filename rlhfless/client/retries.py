"""How long to wait before a request is sent again. Pure."""

from __future__ import annotations

FIRST_S = 0.2
LONGEST_S = 10.0
LONGEST_ASKED_S = 60.0
"""However long the service asks for."""


def delay_s(attempt: int, after_s: float | None, jitter: float) -> float:
    """Before attempt ``attempt + 1``: twice as long each time, and at least what the service asked
    for. ``jitter``, in [0, 1), takes off up to a half, so that clients cut off together do not come
    back together."""
    planned = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt - 1, 30)) * (1 - jitter / 2)
    return max(planned, min(after_s or 0.0, LONGEST_ASKED_S))
