"""Which stretches of a step were spent inside functions, and what was left for orchestration.

The function reports how long it worked on a call; the call's last ``busy_s`` seconds count as
work, the rest of its wall time (HTTP, framing, waiting for the loop) as overhead. Overlapping
calls count once: overhead is the time in which no function worked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhfless.messages import FunctionName

KEEP_LOADS = 256


@dataclass(frozen=True)
class CallSpan:
    """A finished call, loop seconds; ``busy_s`` as the function measured it."""

    function: FunctionName
    start_s: float
    end_s: float
    busy_s: float


@dataclass
class Timeline:
    """Calls of a job, kept for the current step. ``loads``: (loop seconds, function, seconds) of
    the newest calls that had to load what a warm instance has."""

    calls: list[CallSpan] = field(default_factory=list)
    loads: list[tuple[float, FunctionName, float]] = field(default_factory=list)

    def add(
        self,
        function: FunctionName,
        start_s: float,
        end_s: float,
        busy_s: float,
        load_s: float = 0.0,
    ) -> None:
        busy_s = min(max(busy_s, 0.0), end_s - start_s)
        self.calls.append(CallSpan(function, start_s, end_s, busy_s))
        if load_s > 0:
            self.loads.append((end_s, function, load_s))

    def covered_s(self, since_s: float, until_s: float) -> float:
        """Seconds of ``[since_s, until_s)`` in which at least one function worked."""
        covered = 0.0
        reached = since_s
        for start, end in sorted((c.end_s - c.busy_s, c.end_s) for c in self.calls):
            start, end = max(start, reached), min(end, until_s)
            if end > start:
                covered += end - start
                reached = end
        return covered

    def forget_before(self, time_s: float) -> None:
        self.calls = [call for call in self.calls if call.end_s > time_s]
        self.loads = self.loads[-KEEP_LOADS:]
