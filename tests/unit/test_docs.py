"""The documentation says what is true: generated pages are current, links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.known_clusters import known_clusters
from simulator.report.contents import Report
from simulator.report.json_file import document
from simulator.strategies import ASSIGNMENTS, BASES, OBJECTIVES, TECHNIQUES
from tests.support.simulations import budget_answer, max_instances, simulation

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_strategy_is_explained() -> None:
    text = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    for name, meaning in {**BASES, **TECHNIQUES}.items():
        assert f"| `{name}` | {meaning} |" in text
    for name in (*ASSIGNMENTS, *OBJECTIVES, *known_clusters()):
        assert f"`{name}`" in text


def test_every_field_of_the_simulations_document_is_explained() -> None:
    """Names of ``simulation.json`` that scripts may rely on."""
    text = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    sweep, budget = max_instances([4, 8, 16]), budget_answer(fits=True)
    found = document(Report((simulation(),), None, sweep, budget))
    one = found["simulations"][0]
    named = {*found, *found["sweep"], *found["budget"], *one["usage"]["rollout"]}
    named |= {*one["simulated"][0], *one["step_s"]}
    assert not {name for name in named if f"`{name}`" not in text}
    assert not {name for name in one if f"`.{name}`" not in text}
