"""``docs/metrics.md``, read as the promise that it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tests.support.runs import ROOT

# The page's words for when a metric is there -> whether a run can tell (``None``: it may be there).
KL, PPO, SECOND = "with a KL penalty", "with PPO", "from the second step"
LEARNED = "something was to be learned"
DRAFTED = "with [drafting](drafting.md), something was drafted"  # by none of our runs here
PERHAPS = {
    "both vary",
    "such calls were measured in an earlier step",
    "training state was rebuilt",
}


def names(section: str) -> list[str]:
    """Every name in the tables of a section."""
    return [name for cells in _rows(section) for name in _names(cells[0])]


def assert_as_documented(
    metrics: Iterable[Mapping[str, float]], rewards: Iterable[str], *, kl: bool, ppo: bool
) -> None:
    """Each step of a run has exactly the metrics that the page says it has."""
    always, sometimes = _metrics(rewards)
    for step, found in enumerate(metrics, 1):
        learned = ppo or found["reward/frac_zero_std_groups"] < 1
        holds = {KL: kl, PPO: ppo, SECOND: step > 1, LEARNED: learned}
        expected = always | {name for name, when in sometimes.items() if holds.get(when)}
        possible = {name for name, when in sometimes.items() if when in PERHAPS}
        assert expected - found.keys() == set(), f"missing in step {step}"
        assert found.keys() - expected - possible == set(), f"not documented, in step {step}"


def _metrics(rewards: Iterable[str]) -> tuple[set[str], dict[str, str]]:
    """Metrics of every step, and of some, with when."""
    always = {f"reward/{name}" for name in rewards}
    sometimes = {}
    for first, *others in _rows("metrics.jsonl"):
        found = _names(first)
        if found == ["reward/<name>"]:
            continue
        if len(others) == 1:
            always |= set(found)
            continue
        when, _ = others
        assert when in {KL, PPO, SECOND, LEARNED, DRAFTED} | PERHAPS, f"what does {when!r} mean?"
        sometimes |= dict.fromkeys(found, when)
    return always, sometimes


def _rows(section: str) -> list[list[str]]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    text = text.split(f"## `{section}", 1)[1].split("\n## ", 1)[0]
    return [line.split(" | ") for line in re.findall(r"^\| (`.*) \|$", text, re.MULTILINE)]


def _names(cell: str) -> list[str]:
    """The names in a cell; one that begins with a slash lacks what the one before begins with."""
    found: list[str] = []
    for word in re.findall(r"`([^`]+)`", cell):
        found.append(found[-1].rpartition("/")[0] + word if word.startswith("/") else word)
    return found
