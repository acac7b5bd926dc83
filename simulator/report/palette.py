"""Colours that mean the same in every picture, told apart by readers with a colour deficiency."""

from __future__ import annotations

from collections.abc import Mapping

from controller.ledger import Phase

LIGHT: Mapping[Phase, str] = {"busy": "#2a6fc9", "idle": "#e9b44c", "cold": "#9aa3b2"}
"""On a light ground; ``page.css`` has the same, and those on a dark one."""
LABELS: Mapping[Phase, str] = {"busy": "busy", "idle": "idle", "cold": "starting"}
