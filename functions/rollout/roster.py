"""What a call is to generate: the prompts and samples of its request, and those that joined since.

Indices never change; what joins is appended.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.messages import RolloutRequest, SampleTask, SteerRequest


@dataclass(frozen=True)
class Roster:
    """``cuts[p]``: as in ``PrefixUse``; empty where a prompt has none."""

    prompts: list[list[int]]
    samples: list[SampleTask]
    cuts: list[list[int]]

    @classmethod
    def of(cls, request: RolloutRequest) -> Roster:
        roster = cls([], [], [])
        roster._add(request.prompts, request.prefix.cuts if request.prefix else [])
        roster.samples.extend(request.samples)
        return roster

    def join(self, change: SteerRequest) -> None:
        self._add(change.prompts, change.cuts)
        self.samples.extend(change.samples)

    def _add(self, prompts: list[list[int]], cuts: list[list[int]]) -> None:
        self.prompts.extend(prompts)
        missing = len(prompts) - len(cuts)
        self.cuts.extend(cuts + [[] for _ in range(missing)])
