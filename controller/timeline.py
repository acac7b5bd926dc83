"""Which stretches of a step were spent inside functions, and what was left for orchestration.

The function reports how long it worked on a call; the call's last ``busy_s`` seconds count as
work, the rest of its wall time (HTTP, framing, waiting for the loop) as overhead. Overlapping
calls count once: overhead is the time in which no function worked.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from rlhfless.messages import FunctionName

KEEP_LOADS = 256
"""Of all functions, beyond those of the current step."""
KEEP_CALLS = 512
"""Of each function, for the calibration of a run."""


@dataclass(frozen=True)
class CallSpan:
    """A finished call, loop seconds; ``busy_s`` as the function measured it, ``load_s`` of which
    went into what a warm instance has. ``work``: what it worked on, as the caller counts."""

    function: FunctionName
    start_s: float
    end_s: float
    busy_s: float
    load_s: float = 0.0
    work: float = 0.0


@dataclass
class Timeline:
    """Calls of a job, kept for the current step. ``loads``: (loop seconds, function, seconds) of
    the newest calls that had to load what a warm instance has. ``worked``: by function, the newest
    calls that were worked on."""

    calls: list[CallSpan] = field(default_factory=list)
    loads: list[tuple[float, FunctionName, float]] = field(default_factory=list)
    worked: dict[FunctionName, deque[CallSpan]] = field(
        default_factory=lambda: defaultdict(partial(deque[CallSpan], maxlen=KEEP_CALLS))
    )

    def add(
        self,
        function: FunctionName,
        start_s: float,
        end_s: float,
        busy_s: float,
        load_s: float = 0.0,
        work: float = 0.0,
    ) -> None:
        busy_s = min(max(busy_s, 0.0), end_s - start_s)
        call = CallSpan(function, start_s, end_s, busy_s, min(load_s, busy_s), work)
        self.calls.append(call)
        if busy_s > 0:
            self.worked[function].append(call)
        if load_s > 0:
            self.loads.append((end_s, function, load_s))

    def covered_s(self, since_s: float, until_s: float) -> float:
        """Seconds of ``[since_s, until_s)`` in which at least one function worked."""
        return _covered_s(((c.end_s - c.busy_s, c.end_s) for c in self.calls), since_s, until_s)

    def called_s(self, since_s: float, until_s: float) -> float:
        """Seconds of ``[since_s, until_s)`` in which at least one call was under way."""
        return _covered_s(((c.start_s, c.end_s) for c in self.calls), since_s, until_s)

    def forget_before(self, time_s: float) -> None:
        self.calls = [call for call in self.calls if call.end_s > time_s]
        self.loads = self.loads[-KEEP_LOADS:]


def _covered_s(spans: Iterable[tuple[float, float]], since_s: float, until_s: float) -> float:
    covered = 0.0
    reached = since_s
    for start, end in sorted(spans):
        start, end = max(start, reached), min(end, until_s)
        if end > start:
            covered += end - start
            reached = end
    return covered
