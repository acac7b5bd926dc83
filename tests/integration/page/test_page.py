"""The page in a real browser, over a real service whose jobs nobody drives.

What a job leaves is made up (``tests.support.page_answers``); ``test_page_end_to_end`` runs jobs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.service.events import JobEvent
from controller.service.service import Service
from controller.service.states import State
from rlhfless import rest
from rlhfless.spec import JobSpec
from tests.support.browser import PHONE, Watched, chromium
from tests.support.page_answers import STEPS, Answers
from tests.support.served import Served, served

pytestmark = pytest.mark.slow

HOSTILE = (
    '<img src=x onerror="window.taken=1"><script>window.taken=1</script>'
    "\u202e&lt;b&gt; {{7*7}} javascript:window.taken=1"
)
TABS = ["overview", "samples", "plans", "usage", "checkpoints", "events", "logs", "spec"]
SPEC: dict[str, Any] = {
    "name": "copying",
    "model": {"path": "org/model"},
    "dataset": {"path": "org/data"},
    "rewards": [{"http": "https://example.com/reward"}],
    "training": {"steps": 30},
}
Open = Callable[..., Watched]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "library/quickstart/model").mkdir(parents=True)
    (folder / "library/quickstart/model/config.json").write_text("{}")
    with served(folder, library=str(folder / "library")) as started:
        yield started


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """One a test: no test sees another's jobs."""
    return re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:50].strip("-")


@pytest.fixture
def key(service: Served, tenant: str) -> str:
    return service.do(lambda parts: parts.keys.create(tenant, "page", "admin"))[1]


@pytest.fixture
def opened(browser: Any, service: Served, key: str) -> Iterator[Open]:
    """Opens tabs that are signed in, and sees at the end that none complained."""
    tabs: list[Watched] = []

    def make(*, signed_in: bool = True, **options: Any) -> Watched:
        tabs.append(Watched(browser, service.url, **options))
        if signed_in:
            tabs[-1].sign_in(key)
        return tabs[-1]

    yield make
    for tab in tabs:
        tab.close()


@pytest.fixture
def make_job(service: Served, tenant: str) -> Callable[..., str]:
    """Makes a job that is brought into states; answers its id."""

    def make(*states: State, **fields: Any) -> str:
        async def create(parts: Service) -> str:
            values = JobSpec.model_validate(SPEC | fields).model_dump(mode="json")
            made = await parts.registry.create(tenant, values)
            for state in states:
                await parts.registry.move(tenant, made.id, state)
            return made.id

        return service.do(create)

    return make


def answering(tab: Watched, answers: Answers) -> None:
    """Let questions about outputs be answered by ``answers``."""

    def handle(route: Any) -> None:
        found = answers.answer(route.request.url)
        if found is None:
            route.fallback()
        else:
            route.fulfill(json=found)

    tab.page.route("**/v1/jobs/*/*", handle)


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(opened: Open, key: str) -> None:
    tab = opened(signed_in=False)
    page = tab.page
    tab.open("#/submit")
    page.get_by_label("API key").fill("rlk_wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Not authenticated").wait_for()
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Submit a job").wait_for()  # where they wanted to go
    page.reload()
    page.get_by_role("heading", name="Submit a job").wait_for()
    kept = page.evaluate("[JSON.stringify(localStorage), document.cookie, location.href].join()")
    assert key not in kept
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    assert tab.refused  # the wrong key


def test_a_key_that_is_revoked_leads_back_to_the_form(
    opened: Open, service: Served, tenant: str, key: str
) -> None:
    tab = opened()
    id_ = key.split("_")[1]
    service.do(lambda parts: parts.keys.revoke(tenant, id_))
    tab.page.get_by_label("API key").wait_for()
    tab.page.get_by_text("Signed out:").wait_for()


def test_the_list_of_jobs_follows_what_happens(
    opened: Open, service: Served, tenant: str, make_job: Callable[..., str]
) -> None:
    page = opened().page
    page.get_by_text("No job has been submitted yet.").wait_for()
    job = make_job()
    row = page.get_by_role("row").filter(has_text=job)
    row.get_by_text("queued").wait_for()
    service.do(lambda parts: parts.registry.move(tenant, job, "running"))
    row.get_by_text("running").wait_for()
    row.get_by_role("link", name="copying").click()
    page.get_by_role("heading", name="copying").wait_for()


def test_older_jobs_are_asked_for(opened: Open, make_job: Callable[..., str]) -> None:
    jobs = [make_job() for _ in range(23)]
    page = opened().page
    rows = page.locator("table.jobs tbody tr")
    page.get_by_text(jobs[-1]).wait_for()
    assert rows.count() == 20
    page.get_by_role("button", name="Older jobs").click()
    page.get_by_text(jobs[0]).wait_for()
    assert rows.count() == 23
    assert not page.get_by_role("button", name="Older jobs").is_visible()


def test_a_job_is_seen_as_it_runs(
    opened: Open, service: Served, tenant: str, make_job: Callable[..., str]
) -> None:
    job = make_job("running")
    tab = opened()
    answers = Answers(job, time.time() - 30, steps=3)
    answering(tab, answers)
    tab.open(f"#/jobs/{job}")
    page = tab.page
    reward = page.get_by_role("slider", name="Reward", exact=True)
    page.locator("figure").first.get_by_text("step 3:").wait_for()
    page.get_by_text("Live", exact=True).wait_for()
    answers.steps = 4
    said = JobEvent(type="step", message="step 4 is there")
    service.do(lambda parts: parts.events.append(job, said))
    page.locator("figure").first.get_by_text("step 4:").wait_for()
    assert "step 4" in reward.get_attribute("aria-valuetext")
    assert page.locator("figure rect.busy").count() > 0
    service.do(lambda parts: parts.registry.move(tenant, job, "succeeded"))
    page.get_by_role("status").get_by_text("succeeded").wait_for()
    assert not page.get_by_role("button", name="Pause").is_visible()
    page.get_by_text("Live", exact=True).wait_for(state="hidden")


def test_a_stream_that_is_cut_is_taken_up_where_it_was(
    opened: Open, service: Served, make_job: Callable[..., str]
) -> None:
    job = make_job("running")
    tab = opened()
    page = tab.page
    answering(tab, Answers(job, time.time()))
    asked: list[str | None] = []
    first = {"created_at": 1.0, "type": "notice", "level": "info", "data": {}}

    def cut(route: Any) -> None:
        asked.append(route.request.headers.get("last-event-id"))
        if len(asked) == 1:
            event = first | {"id": "1-0", "message": "before the cut"}
            told = rest.Event.model_validate(event).model_dump_json()
            text = f"id: 1-0\ndata: {told}\n\nid: 2-0\ndata: half of an ev"
            route.fulfill(body=text, content_type="text/event-stream")
        elif len(asked) == 2:
            route.abort()
        else:
            route.continue_()

    page.route("**/events", cut)
    tab.open(f"#/jobs/{job}/events")
    page.get_by_text("before the cut").wait_for()
    page.get_by_text("Connection lost, trying again").wait_for()
    page.get_by_text("Live", exact=True).wait_for()
    said = JobEvent(type="notice", message="after the cut")
    service.do(lambda parts: parts.events.append(job, said))
    page.get_by_text("after the cut").wait_for()
    assert asked == [None, "1-0", "1-0"]
    assert page.get_by_text("before the cut").count() == 1
    assert page.locator("ol.events li").count() == 4  # and two states
    tab.refused.clear()
    tab.errors = [error for error in tab.errors if "net::ERR" not in error]


def test_samples_are_browsed(opened: Open, make_job: Callable[..., str]) -> None:
    job = make_job("running")
    tab = opened()
    answering(tab, Answers(job, time.time()))
    tab.open(f"#/jobs/{job}/samples")
    page = tab.page
    cards = page.get_by_role("article")
    first = cards.first
    first.get_by_text("Reward 1.02").wait_for()
    first.get_by_text("Copy the letters").wait_for()  # the best has a chat prompt
    assert cards.count() == 10
    page.get_by_role("button", name="More samples").click()
    cards.nth(19).wait_for()
    page.get_by_label("Order").select_option("worst first")
    first.get_by_text("Reward 0", exact=True).wait_for()
    first.get_by_text("brevity does not apply").wait_for()
    page.get_by_label("Token log-probs").check()
    token = first.locator(".token").nth(3)
    token.wait_for()
    assert "log-prob -" in token.get_attribute("title")
    heats = first.locator(".token").evaluate_all(
        "tokens => tokens.map(token => getComputedStyle(token).backgroundColor)"
    )
    assert len(set(heats)) > 3
    first.get_by_text("Least likely tokens").click()
    assert first.get_by_role("row").count() == 6
    page.get_by_role("button", name="Earlier").click()
    page.get_by_label("Step").and_(page.locator("input")).wait_for()
    assert page.get_by_label("Step").input_value() == str(STEPS - 1)
    assert page.url.endswith(f"/samples/{STEPS - 1}")
    page.reload()
    first.wait_for()
    assert page.get_by_label("Step").input_value() == str(STEPS - 1)


def test_a_plan_is_explained(opened: Open, make_job: Callable[..., str]) -> None:
    job = make_job("running")
    tab = opened()
    answering(tab, Answers(job, time.time()))
    tab.open(f"#/jobs/{job}/plans")
    page = tab.page
    newest = page.locator("details.plan").first
    newest.get_by_text(f"Step {STEPS}").click()
    newest.get_by_text("two actors take 1.00 s").wait_for()
    newest.get_by_text("32 prompts are prefilled once").wait_for()
    newest.get_by_text("1 sample moved, 1 instance let go early").wait_for()
    chosen = newest.get_by_role("row").filter(has_text="chosen")
    assert "sorted" in chosen.inner_text()
    assert page.locator("details.plan").count() == STEPS


def test_what_a_job_says_is_never_markup(opened: Open, make_job: Callable[..., str]) -> None:
    job = make_job("running", metadata={"note": HOSTILE})
    tab = opened()
    answering(tab, Answers(job, time.time(), hostile=HOSTILE))
    tab.page.on("dialog", lambda dialog: tab.errors.append(dialog.message))
    for name in TABS:
        tab.open(f"#/jobs/{job}/{name}")
        tab.page.locator(f"[data-tab={name}][aria-current]").wait_for()
        if name in ("samples", "logs", "spec"):
            tab.page.get_by_text("window.taken").first.wait_for()
        if name == "plans":
            tab.page.locator("details.plan summary").first.click()
            tab.page.get_by_text("window.taken").first.wait_for()
    assert tab.page.evaluate("window.taken") is None
    assert tab.page.locator("main img, main script").count() == 0


def test_a_job_is_paused_resumed_and_cancelled(
    opened: Open, service: Served, tenant: str, make_job: Callable[..., str]
) -> None:
    job = make_job("running")
    tab = opened()
    page = tab.page
    answering(tab, Answers(job, time.time()))
    tab.open(f"#/jobs/{job}")
    page.get_by_role("button", name="Pause").click()
    page.locator("h1 .pausing").wait_for()
    service.do(lambda parts: parts.registry.move(tenant, job, "paused"))
    page.get_by_role("button", name="Resume").click()
    page.locator("h1 .queued").wait_for()
    page.get_by_role("button", name="Cancel job").click()
    dialog = page.get_by_role("dialog", name="Cancel copying?")
    dialog.wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    assert page.locator("h1 .queued").is_visible()
    page.get_by_role("button", name="Cancel job").click()
    dialog.get_by_role("button", name="Cancel the job").click()
    page.locator("h1 .cancelled").wait_for()
    assert not page.get_by_role("button", name="Cancel job").is_visible()


def test_a_budget_is_raised_on_the_way(
    opened: Open, service: Served, make_job: Callable[..., str], tenant: str
) -> None:
    job = make_job("running", "paused", budget={"max_function_seconds": 50.0})
    tab = opened()
    answering(tab, Answers(job, time.time()))
    tab.open(f"#/jobs/{job}")
    tab.page.get_by_role("button", name="Resume").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Most function-seconds").fill("80")
    dialog.get_by_role("button", name="Resume").click()
    tab.page.locator("h1 .queued").wait_for()
    record = service.do(lambda parts: parts.registry.get(tenant, job))
    assert record.spec["budget"]["max_function_seconds"] == 80


def test_a_refusal_is_told(opened: Open, service: Served, make_job: Callable[..., str]) -> None:
    job = make_job("running")
    tab = opened()
    page = tab.page
    answering(tab, Answers(job, time.time()))
    problem = {"title": "No", "detail": "the job cannot pause", "hint": "ask later", "status": 409}
    page.route("**/pause", lambda route: route.fulfill(json=problem, status=409))
    tab.open(f"#/jobs/{job}")
    page.get_by_role("button", name="Pause").click()
    alert = page.get_by_role("alert")
    alert.get_by_text("the job cannot pause").wait_for()
    alert.get_by_text("ask later").wait_for()
    tab.open("#/jobs/job-nothing")
    page.get_by_role("alert").get_by_text("there is no job").wait_for()


def test_a_checkpoint_is_downloaded(
    opened: Open, make_job: Callable[..., str], tmp_path: Path, key: str
) -> None:
    job = make_job("running")
    tab = opened()
    page = tab.page
    answering(tab, Answers(job, time.time()))
    asked: list[str] = []

    def content(route: Any) -> None:
        asked.append(route.request.headers["authorization"])
        route.fulfill(body=b"{}\n", content_type="application/octet-stream")

    page.route("**/checkpoints/*/files/**", content)
    tab.open(f"#/jobs/{job}/checkpoints")
    page.get_by_text(f"checkpoint:{job}/{STEPS}").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name=f"config.json, download of step {STEPS}").click()
    target = tmp_path / download.value.suggested_filename
    download.value.save_as(target)
    assert (target.name, target.read_bytes()) == ("config.json", b"{}\n")
    assert asked == [f"Bearer {key}"]


def test_usage_is_told_by_function_and_step(opened: Open, make_job: Callable[..., str]) -> None:
    job = make_job("running")
    tab = opened()
    answering(tab, Answers(job, time.time()))
    tab.open(f"#/jobs/{job}/usage")
    total = tab.page.get_by_role("table", name="Instance time by function")
    assert "90 s" in total.get_by_role("row", name="all").inner_text()
    steps = tab.page.get_by_role("table", name="Instance time by step and function")
    steps.wait_for()
    assert steps.get_by_role("row").count() == 1 + 3 * STEPS


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
    assert instances.get_attribute("aria-valuetext").startswith("rollout-1: starting 3 s")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    assert instances.get_attribute("aria-valuetext").startswith("rollout-2: busy 0.7 s")
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
