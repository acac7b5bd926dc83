"""The page by keyboard, by screen reader, on a phone, in light and dark, and without motion."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from controller.service.events import JobEvent
from tests.support.browser import PHONE, Watched
from tests.support.page_answers import STEPS, TABS, Answers, Open, answering
from tests.support.served import Served

pytestmark = pytest.mark.slow

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
FOCUSED = """() => {
    const element = document.activeElement, style = getComputedStyle(element);
    const seen = element.closest("label.button") ?? element; // file inputs are seen as buttons
    return {
        tag: element.tagName, type: element.type ?? "",
        name: element.getAttribute("aria-label") || element.labels?.[0]?.textContent.trim()
            || element.textContent.trim(),
        ring: parseFloat(getComputedStyle(seen).outlineWidth),
    };
}"""


def test_charts_and_tabs_answer_the_keyboard(opened: Open, make_job: Callable[..., str]) -> None:
    job = make_job("running")
    tab = opened()
    page = tab.page
    answering(tab, Answers(job, time.time()))
    tab.open(f"#/jobs/{job}")
    reward = page.get_by_role("slider", name="Reward", exact=True)
    page.locator("figure").first.get_by_text(f"step {STEPS}:").wait_for()
    reward.focus()
    page.keyboard.press("ArrowLeft")
    assert reward.get_attribute("aria-valuetext").startswith(f"step {STEPS - 1}: ")
    page.keyboard.press("Home")
    assert reward.get_attribute("aria-valuetext").startswith("step 1: ")
    instances = page.get_by_role("slider", name="Function instances over time")
    instances.focus()
    page.keyboard.press("Home")
    assert instances.get_attribute("aria-valuetext").startswith("rollout-1: starting 3\u00a0s")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    assert instances.get_attribute("aria-valuetext").startswith("rollout-2: busy 0.7\u00a0s")
    page.get_by_role("link", name="Samples").focus()
    page.keyboard.press("Enter")
    page.get_by_role("article").first.wait_for()
    page.get_by_role("link", name="Skip to content").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("/samples")


def test_every_control_has_a_name(opened: Open, make_job: Callable[..., str]) -> None:
    job = make_job("running")
    tab = opened()
    page = tab.page
    answering(tab, Answers(job, time.time()))
    for place in ["#/jobs", "#/submit", *(f"#/jobs/{job}/{name}" for name in TABS)]:
        tab.open(place)
        page.locator("main h1").wait_for()
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, textarea, a")]
                .filter(element => !element.textContent.trim() && !element.labels?.length
                    && !element.getAttribute("aria-label"))
                .map(element => element.outerHTML)"""
        )
        assert unnamed == [], place
        assert page.locator("main h1").count() == 1
        assert page.locator("table:not(:has(caption))").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_every_page_without_scrolling_sideways(
    opened: Open, make_job: Callable[..., str], scheme: str
) -> None:
    job = make_job("running", name="a-name-that-is-as-long-as-names-can-be-" + "x" * 23)
    tab = opened(viewport=PHONE, color_scheme=scheme, reduced_motion="reduce")
    page = tab.page
    answering(tab, Answers(job, time.time(), hostile="x" * 300))
    for place in ["#/jobs", "#/submit", *(f"#/jobs/{job}/{name}" for name in TABS)]:
        tab.open(place)
        page.locator("main h1").wait_for()
        page.wait_for_load_state("networkidle") if place == "#/submit" else None
        page.locator("table.jobs tbody tr").first.wait_for() if place == "#/jobs" else None
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], place
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(20, 22, 26)") == (scheme == "dark")


def test_colours_can_be_chosen_and_stay(opened: Open) -> None:
    page = opened(color_scheme="light").page
    button = page.get_by_role("button", name="Colours")
    button.click()
    button.click()
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 22, 26)"
    page.reload()
    button.wait_for()
    assert page.evaluate(ground) == "rgb(20, 22, 26)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    opened: Open, service: Served, tenant: str, make_job: Callable[..., str], scheme: str
) -> None:
    """Roles, names, headings, contrast: whatever axe-core can see."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    script = files(axe).joinpath("axe.min.js").read_text("utf-8")
    job = make_job("running")
    failed = make_job("running")
    error: dict[str, Any] = {
        "title": "Invalid request",
        "detail": "no such reward",
        "hint": "name another",
    }
    error |= {"type": "about:blank", "category": "user", "status": 422}
    service.do(lambda parts: parts.registry.move(tenant, failed, "failed", "no", error=error))
    warning = JobEvent(type="notice", message="slow", level="warning")
    service.do(lambda parts: parts.events.append(job, warning))
    tab = opened(signed_in=False, color_scheme=scheme, reduced_motion="reduce")
    answering(tab, Answers(job, time.time()))

    def look(place: str) -> None:
        tab.page.evaluate(script)
        found = tab.page.evaluate("rules => axe.run({runOnly: rules})", RULES)
        told = [
            (place, each["id"], [node["html"][:150] for node in each["nodes"]])
            for each in found["violations"]
        ]
        assert told == []

    tab.open("")
    tab.page.get_by_label("API key").wait_for()
    look("sign in")
    tab.sign_in(service.do(lambda parts: parts.keys.create(tenant, "axe", "submit"))[1])
    tab.page.get_by_text(failed).wait_for()
    look("jobs")
    for name in ["jobs/nothing", "submit", f"jobs/{failed}", *(f"jobs/{job}/{t}" for t in TABS)]:
        tab.open(f"#/{name}")
        tab.page.locator("main h1").wait_for()
        open_all(tab, name.rpartition("/")[2])
        look(name)
    tab.page.get_by_role("button", name="Cancel job").click()
    look("dialog")


def open_all(tab: Watched, name: str) -> None:
    """Wait for what a tab shows, and open what is folded."""
    page = tab.page
    if name == "samples":
        page.get_by_role("article").first.wait_for()
        page.get_by_label("Token log-probs").check()
        page.locator(".token").first.wait_for()
    shown = {"plans": "details.plan", "usage": "table.totalled", "logs": "ol.log li"}
    shown |= {"overview": "figure rect", "events": "ol.events li", "checkpoints": "article"}
    if name in shown:
        page.locator(shown[name]).first.wait_for()
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")


def test_a_job_is_found_and_cancelled_by_keyboard_alone(
    opened: Open, make_job: Callable[..., str], key: str
) -> None:
    job = make_job("running")
    tab = opened(signed_in=False)
    keys = tab.page.keyboard
    answering(tab, Answers(job, time.time()))
    tab.open("")
    tab.page.get_by_label("API key").wait_for()
    keys.type(key)  # the field has the focus
    keys.press("Enter")
    tab.page.get_by_text(job).wait_for()
    walk(tab, "copying")
    keys.press("Enter")
    tab.page.locator("figure").first.get_by_text(f"step {STEPS}:").wait_for()
    walk(tab, "Samples")
    keys.press("Enter")
    tab.page.get_by_role("article").first.wait_for()
    walk(tab, "Order")
    keys.press("ArrowDown")
    tab.page.get_by_role("article").first.get_by_text("Reward 0", exact=True).wait_for()
    walk(tab, "Token log-probs")
    keys.press("Space")
    tab.page.locator(".token").first.wait_for()
    walk(tab, "Cancel job", back=True)
    keys.press("Space")
    dialog = tab.page.get_by_role("dialog", name="Cancel copying?")
    dialog.wait_for()
    assert focused(tab)["name"] == "Keep it"  # what does no harm
    keys.press("Escape")
    dialog.wait_for(state="hidden")
    assert focused(tab)["name"] == "Cancel job"  # and goes on from where it was
    keys.press("Enter")
    dialog.wait_for()
    walk(tab, "Cancel the job")
    keys.press("Enter")
    tab.page.locator("h1 .cancelled").wait_for()


def focused(tab: Watched) -> dict[str, Any]:
    return tab.page.evaluate(FOCUSED)


def walk(tab: Watched, name: str, *, back: bool = False) -> None:
    """Press Tab until ``name`` has the focus; whatever has it on the way can be seen to have it."""
    passed = []
    for _ in range(60):
        tab.page.keyboard.press("Shift+Tab" if back else "Tab")
        now = focused(tab)
        passed.append(now["name"][:40])
        if now["tag"] not in ("BODY", "HTML"):
            assert now["name"], now
            assert now["ring"] >= 2, now
        if now["name"] == name:
            return
    raise AssertionError(f"{name} is not among {passed}")


def test_nothing_moves_for_those_who_do_not_want_it(
    opened: Open, make_job: Callable[..., str]
) -> None:
    job = make_job("running", budget={"max_function_seconds": 50.0})
    for wish, moving in [("reduce", False), ("no-preference", True)]:
        tab = opened(reduced_motion=wish)
        answering(tab, Answers(job, time.time()))
        tab.open(f"#/jobs/{job}")
        tab.page.locator(".meter i").first.wait_for(state="attached")
        moved = tab.page.evaluate(
            """() => [...document.querySelectorAll("*")].some(element => {
                const style = getComputedStyle(element);
                return style.transitionDuration !== "0s" || style.animationName !== "none";
            })"""
        )
        assert moved == moving
