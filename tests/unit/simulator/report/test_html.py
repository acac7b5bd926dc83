"""The page: well formed, complete, nothing from elsewhere, a user's text escaped."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from simulator.known_clusters import find_cluster
from simulator.report.contents import Report
from simulator.report.html import page
from simulator.report.markup import Axis, ticks
from simulator.report.units import time_scale
from simulator.result import Use
from tests.support.simulations import (
    PLAN,
    budget_answer,
    max_instances,
    simulation,
    spans,
    step_found,
)

VOID = {"meta", "link", "br", "rect", "line", "path", "polyline", "input"}
NASTY = "<img src=x onerror=alert(1)>\"'&</script>{{}}"


class Outline(HTMLParser):
    """Fails on tags that are not closed in order; keeps text, tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def reports() -> dict[str, Report]:
    cluster = find_cluster("mixed-spot").cluster()
    runs = (simulation("static", 1.4), simulation(spans=spans(actors=200)))
    found = max_instances(range(4, 65, 4), worse=12)
    return {
        "one": Report((simulation(),), cluster),
        "several": Report(runs, cluster),
        "sweep": Report(runs, None, found),
        "budget": Report(runs[:1], cluster, max_instances([4, 8]), budget_answer(fits=False)),
        "nothing known": Report((simulation(spans=(), assumptions=(), spec={}, usage={}),)),
    }


@pytest.mark.parametrize("name", reports())
def test_a_page_is_well_formed_and_stands_alone(name: str) -> None:
    text = page(reports()[name])
    outline = Outline(text)
    assert "http:" not in text
    assert "https:" not in text
    for tag, attributes in outline.tags:
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"
        assert tag not in ("img", "iframe", "object", "base", "form")
    assert text == page(reports()[name])


def test_pages_can_be_read_without_seeing_them() -> None:
    for report in reports().values():
        text = page(report)
        outline = Outline(text)
        names = [tag for tag, _ in outline.tags]
        assert names.count("table") == names.count("caption")
        assert names.count("h1") == names.count("main") == 1
        pictures = [attributes for _, attributes in outline.tags if attributes.get("role") == "img"]
        assert all(each.get("aria-label") for each in pictures)
        assert '<html lang="en">' in text


def test_one_simulation_in_words() -> None:
    text = Outline(page(reports()["one"])).text
    assert "math on h100-8" in text
    assert "Simulated, nothing was run. Qwen/Qwen2.5-7B, grpo; 100 steps of 256 samples" in text
    assert "15.9 GPU-h" in text
    assert "$63.50" in text
    assert "2 plans were weighed" in text
    assert "no run was recorded: lengths follow LONG_TAILED_MATH" in text
    assert "4 x 8 L40S" in text
    assert "group_size: 8" in text


def test_a_comparison_in_a_sentence() -> None:
    fast, slow = simulation(), simulation("static", 1.4)
    assert "rlhfless is 1.40x as fast as static and holds 10% less GPU time." in page(
        Report((slow, fast))
    )
    assert "static takes 40% longer than rlhfless and holds 11% more GPU time." in page(
        Report((fast, slow))
    )


def test_only_what_differs_is_told_of_other_specs() -> None:
    other = simulation(
        "static", spec={**simulation().spec, "algorithm": {"name": "grpo"}, "seed": 3}
    )
    text = Outline(page(Report((simulation(), other)))).text
    assert "static differs in seed: 3" in text


def test_a_sweep_and_a_budget_lead_with_their_answer() -> None:
    assert "rollout.max_instances = 16 is the knee: 4.44 h for $54.00." in page(reports()["sweep"])
    assert "$50.00 is an answer." in page(reports()["budget"])


def test_text_of_users_is_escaped() -> None:
    plan = {**PLAN, "reason": NASTY, "strategy": NASTY}
    made = simulation(
        NASTY,
        job=NASTY,
        cluster=NASTY,
        assumptions=(NASTY,),
        spec={"name": NASTY, "model": {"path": NASTY}, NASTY: NASTY},
        simulated=(step_found(1, plan=plan),),
        spans=tuple(replace(each, instance=NASTY + each.instance, pool=NASTY) for each in spans()),
    )
    found = max_instances([4, 8, 16], worse=8)
    points = tuple(replace(each, strategy=f"{n}{NASTY}") for n, each in enumerate(found.points))
    impossible = (replace(found.impossible[0], reason=NASTY),)
    text = page(Report((made, made), None, replace(found, points=points, impossible=impossible)))
    outline = Outline(text)
    assert "img" not in [tag for tag, _ in outline.tags]
    assert [tag for tag, _ in outline.tags].count("script") == 1
    assert not any(name.startswith("on") for _, attrs in outline.tags for name in attrs)
    assert NASTY in "".join(outline.words)


def test_unknown_prices_are_unknown() -> None:
    usage = {"rollout": Use(1, 22_000.0, 3_000.0, 1_500.0, None, None, None)}
    text = Outline(page(Report((simulation(usage=usage), simulation("static", usage=usage))))).text
    assert "the cluster has no prices" in text
    assert "price unknown" in text


def test_thousands_of_instances_and_steps_make_no_huge_page() -> None:
    steps = tuple(step_found(n + 1, 80.0 + n % 7, stands_for=1.0) for n in range(1000))
    big = simulation(steps=1000, simulated=steps, spans=spans(actors=2000, steps=5))
    text = page(Report((big,)))
    assert len(text) < 1_500_000
    assert "60 of 1000 simulated steps" in text


def test_patterns_that_are_used_are_there() -> None:
    text = page(reports()["one"])
    assert set(re.findall(r"url\(#(\w+)\)", text)) == {"spot"}
    assert 'id="spot"' in text


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0.0, 10.0, [0, 2, 4, 6, 8, 10]),
        (0.0, 0.0, [0]),
        (103.0, 118.0, [104, 106, 108, 110, 112, 114, 116, 118]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, found: list[float]) -> None:
    assert ticks(low, high) == found


def test_an_axis_need_not_begin_at_nothing() -> None:
    axis = Axis(time_scale([7200.0]), 3600.0, 7200.0)
    assert axis.at(5400.0) == 0.5
    assert axis.marks()[-1] == (1.0, "2 h")
    assert "1.2" in axis.below()
