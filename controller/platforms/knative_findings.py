"""What a look at a cluster ends with: findings, each with what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failed", "unknown"]
Rule = tuple[str, str, str]
"""Verb, API group, resource (and its subresource, after a slash)."""


@dataclass(frozen=True)
class Finding:
    """``advice``: what to change, where something is."""

    verdict: Verdict
    what: str
    advice: str = ""
