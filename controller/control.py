"""What may change about a job while it runs, asked at its step boundaries."""

from __future__ import annotations

from typing import Protocol

from rlhfless.messages import FunctionName


class Control(Protocol):
    def stopping(self) -> str | None:
        """Why the job should stop before its next step; None: it goes on."""
        ...

    def most(self, function: FunctionName) -> int | None:
        """Instances the job may have of a function now; None: as many as its spec says."""
        ...


class _Unhindered:
    def stopping(self) -> str | None:
        return None

    def most(self, function: FunctionName) -> int | None:  # noqa: ARG002
        return None


UNHINDERED: Control = _Unhindered()
"""Of a job that has its machine to itself."""
