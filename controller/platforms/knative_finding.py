"""What a look at a cluster finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True)
class Finding:
    """``advice``: what to change, where something is."""

    verdict: Verdict
    what: str
    advice: str = ""
