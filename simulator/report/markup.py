"""Pieces of a page: escaped text, tables, plots that stretch to any width.

Everything that comes from a user goes through ``text``. A plot holds shapes alone, in an SVG that
is stretched; its names and ticks are text beside it, which keeps its size on a phone.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.report.units import Scale

WIDTH = 1000
"""Units of an SVG from left to right."""


def text(value: object) -> str:
    """Safe between tags and in quoted attributes."""
    return html.escape(str(value), quote=True)


@dataclass(frozen=True)
class Cell:
    """A table's cell; ``markup`` is safe already."""

    markup: str
    css: str = ""


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    *,
    row_css: Sequence[str] = (),
    words: Sequence[int] = (),
) -> str:
    """The first cell of a row names it. Strings are escaped. ``words``: columns of prose."""
    head = "".join(
        f'<th scope="col"{_css("words" if n in words else "")}>{text(name)}</th>'
        for n, name in enumerate(heads)
    )
    body = []
    for number, row in enumerate(rows):
        cells = []
        for n, cell in enumerate(row):
            shown = cell if isinstance(cell, Cell) else Cell(text(cell))
            css = " ".join(each for each in (shown.css, "words" if n in words else "") if each)
            tag = 'th scope="row"' if n == 0 else "td"
            cells.append(f"<{tag}{_css(css)}>{shown.markup}</{tag.split()[0]}>")
        css = row_css[number] if number < len(row_css) else ""
        body.append(f"<tr{_css(css)}>{''.join(cells)}</tr>")
    label = text(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<caption>{label}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _css(names: str) -> str:
    return f' class="{names}"' if names else ""


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """(class, label) of each colour."""
    items = "".join(f'<li><i class="{css}"></i>{text(label)}</li>' for css, label in entries)
    return f'<ul class="legend" aria-hidden="true">{items}</ul>'


def plot(label: str, shapes: str, height: int, names: str, below: str, over: str = "") -> str:
    """``names`` stand to the left, ``below`` are ticks, ``over`` lies on top of the stretched SVG.
    ``label`` says to who cannot see it what the picture shows."""
    return (
        f'<div class="chart"><div class="names" aria-hidden="true">{names}</div>'
        f'<div class="plot" style="height:{height}px" role="img" aria-label="{text(label)}">'
        f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" aria-hidden="true">'
        f'{shapes}</svg>{over}</div><div class="ticks" aria-hidden="true">{below}</div></div>'
    )


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.7)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * n for n in range(first, last + 1)]


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high`` of the base unit, told in ``scale``."""

    scale: Scale
    low: float
    high: float

    def at(self, value: float) -> float:
        """Share of the axis that lies below ``value``."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0

    def marks(self, about: int = 6) -> list[tuple[float, str]]:
        """(share, label) of its ticks; the last has the unit."""
        divisor = self.scale.divisor
        found = ticks(self.low / divisor, self.high / divisor, about)
        labels = [f"{mark:g}" for mark in found]
        labels[-1] += f" {self.scale.unit}"
        return [(self.at(mark * divisor), label) for mark, label in zip(found, labels, strict=True)]

    def below(self) -> str:
        """Its labels, below a plot."""
        return "".join(
            f'<span style="left:{100 * share:.2f}%"{_css("last" if share > 0.93 else "")}>'
            f"{text(label)}</span>"
            for share, label in self.marks()
        )

    def beside(self, about: int) -> str:
        """Its labels, to the left of a plot; a 0 is left out."""
        return "".join(
            f'<span style="top:{100 * (1 - share):.2f}%">{text(label)}</span>'
            for share, label in self.marks(about)
            if share > 0 or self.low
        )

    def upright(self, height: float) -> str:
        """Lines at the ticks of an axis across."""
        return "".join(
            f'<line x1="{WIDTH * share:.1f}" x2="{WIDTH * share:.1f}" y1="0" y2="{height:g}"/>'
            for share, _ in self.marks()
            if share > 0
        )

    def level(self, height: float, about: int) -> str:
        """Lines at the ticks of an axis upwards."""
        return "".join(
            f'<line x1="0" x2="{WIDTH}" y1="{height * (1 - share):.1f}" '
            f'y2="{height * (1 - share):.1f}"/>'
            for share, _ in self.marks(about)
            if share > 0
        )
