"""Numbers as people read them: three significant digits, a unit that fits, "unknown" never 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNKNOWN = "unknown"

_TIMES = ((1.0, "s", 120.0), (60.0, "min", 7200.0), (3600.0, "h", 3600.0 * 72))
_DAY_S = 86400.0
HOURS_FROM_S = 9000.0
"""Accelerator-seconds from which they are told in hours."""


@dataclass(frozen=True)
class Scale:
    """A unit for values that are compared: ``divisor`` of the base unit make one, and all have the
    same number of decimals: those that three digits of the greatest need."""

    divisor: float
    unit: str
    decimals: int

    def show(self, value: float) -> str:
        """Without its unit, which stands in a heading."""
        shown = f"{value / self.divisor:,.{self.decimals}f}"
        if value > 0 and not shown.strip("0."):
            return f"<{10.0**-self.decimals:.{self.decimals}f}"
        return shown

    def tell(self, value: float) -> str:
        return f"{self.show(value)} {self.unit}"


def time_scale(values: Iterable[float]) -> Scale:
    """For durations in seconds: as fits the greatest."""
    greatest = max(values, default=0.0)
    for divisor, unit, below in _TIMES:
        if greatest < below:
            return _scale(divisor, unit, greatest)
    return _scale(_DAY_S, "days", greatest)


def held_scale(values: Iterable[float], noun: str) -> Scale:
    """For accelerator-seconds: ``GPU-s`` or ``GPU-h``, where ``noun`` is GPU."""
    greatest = max(values, default=0.0)
    if greatest < HOURS_FROM_S:
        return _scale(1.0, f"{noun}-s", greatest)
    return _scale(3600.0, f"{noun}-h", greatest)


def _scale(divisor: float, unit: str, greatest: float) -> Scale:
    digits = math.floor(math.log10(greatest / divisor)) if greatest > 0 else 0
    return Scale(divisor, unit, min(6, max(0, 2 - digits)))


def room_around(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis on which what is nearly the same looks nearly the same; from 0 where that is
    not far."""
    low, high = min(values), max(values)
    room = max(0.12 * (high - low), 0.06 * high)
    begin = low - room
    return (0.0 if begin < 0.3 * high else begin), high + room


def duration(seconds: float) -> str:
    """``12.3 s``, ``4.17 min``, ``3.12 h``, ``5.1 days``."""
    return time_scale([seconds]).tell(seconds)


def number(value: float) -> str:
    """Three significant digits, never fewer than the integer part has: ``0.0123``, ``12,345``."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3g}" if size >= 1e-4 else ("0" if value == 0 else f"{value:.1e}")


def count(value: float) -> str:
    """Of tokens or samples: ``12,345``, ``1.23 M``, ``4.56 G``."""
    for divisor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= divisor:
            return f"{number(value / divisor)} {letter}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else number(value)


def usd(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 100:
        return f"${value:,.0f}"
    return f"${value:.2f}" if abs(value) >= 1 else f"${value:.3g}"


def price(value: float | None) -> str:
    """As ``usd``, where nothing else says that it is dollars that are unknown."""
    return "price unknown" if value is None else usd(value)


def share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else "-"


def percent(fraction: float | None) -> str:
    if fraction is None:
        return "-"
    shown = f"{100 * fraction:.0f}"
    if shown in ("0", "-0") and fraction:
        return "<1%" if fraction > 0 else ">-1%"
    return f"{shown}%"


def factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def several(how_many: int, noun: str) -> str:
    """``1 step``, ``12 steps``."""
    return f"{how_many:,} {noun}" if how_many == 1 else f"{how_many:,} {noun}s"
