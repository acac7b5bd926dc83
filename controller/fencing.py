"""Fencing: who may write for a job, when several controller replicas could.

Whoever is granted a job's lease gets a fence with a token one above the last. The fence granted
last lies beside the job's state, so each write checks it in its own transaction: a replica that
slept through the loss of its lease cannot write, however sure of itself it is. A lease that ran out
and that nobody took since still stands behind its writes: there is nobody to contradict them.

The whole fence is compared, not its token alone: a Redis that lost its last second may grant one
token twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlhfless.errors import ConflictError


class LostLeaseError(ConflictError):
    """Another replica drives the job now; leave it alone."""

    title = "Lease lost"


@dataclass(frozen=True)
class Fence:
    """``token`` grows by one a grant; ``holder`` is unique to the grant."""

    token: int
    holder: str

    def __str__(self) -> str:
        return f"{self.token} {self.holder}"

    @classmethod
    def parse(cls, raw: bytes) -> Fence:
        token, _, holder = raw.decode().partition(" ")
        return cls(int(token), holder)


def fence_key(job: str) -> str:
    """Where the fence granted last lies; transactions that check it must watch this key."""
    return f"rlhfless:{{{job}}}:fence"


async def check_fence(pipe: Any, job: str, fence: Fence) -> None:
    """Raises ``LostLeaseError`` unless ``fence`` was granted last. ``pipe`` is a pipeline that
    watches ``fence_key(job)`` and has not begun its transaction."""
    granted = await pipe.get(fence_key(job))
    if granted != str(fence).encode():
        raise LostLeaseError(f"another replica drives job {job} now")
