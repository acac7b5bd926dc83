"""The page's views of jobs in a real browser, over a real service whose jobs nobody drives.

What a job leaves is made up (``tests.support.page_answers``); ``test_page_end_to_end`` runs jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.service.events import JobEvent
from controller.service.keys import Scope
from rlhfless import rest
from tests.support.browser import Watched
from tests.support.page_answers import HOSTILE, STEPS, TABS, Answers, Open, answering
from tests.support.served import Served

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("scope", ["read", "submit"])
def test_only_what_the_key_may_do_is_offered(
    opened: Open, service: Served, tenant: str, make_job: Callable[..., str], scope: Scope
) -> None:
    job = make_job("running")
    tab = opened(signed_in=False)
    page = tab.page
    tab.sign_in(service.do(lambda parts: parts.keys.create(tenant, "other", scope))[1])
    page.get_by_text(f"({scope})").wait_for()
    offered = {
        "#/jobs": [("link", "Submit"), ("link", "Submit a job")],
        f"#/jobs/{job}": [("button", "Pause"), ("button", "Cancel job")],
        f"#/jobs/{job}/spec": [("button", "Use for a new job")],
        "#/submit": [("button", "Submit job"), ("button", "Quick start")],
    }
    for reloaded in (False, True):
        for place, controls in offered.items():
            tab.open(place)
            if reloaded:
                page.reload()
            page.locator("main h1").wait_for()
            for role, name in controls:
                control = page.get_by_role(role, name=name, exact=True)
                if scope == "submit":
                    control.wait_for()
                else:
                    assert not control.is_visible(), (place, name)
    assert page.get_by_text("may look at jobs").is_visible() == (scope == "read")
    make_job()
    tab.open("#/jobs")
    page.get_by_role("row").nth(2).wait_for()  # they are shown all the same


def test_without_jobs_only_who_may_submit_is_told_to(
    opened: Open, service: Served, tenant: str
) -> None:
    tab = opened(signed_in=False)
    tab.sign_in(service.do(lambda parts: parts.keys.create(tenant, "other", "read"))[1])
    tab.page.get_by_text("No job has been submitted yet.").wait_for()
    assert not tab.page.get_by_role("link", name="Submit one").is_visible()


def test_a_tenant_that_cannot_be_told_is_asked_for_again(opened: Open, key: str) -> None:
    tab = opened(signed_in=False)
    failing = "**/v1/tenant"
    tab.page.route(failing, lambda route: route.fulfill(status=503, json={"title": "away"}))
    tab.sign_in(key)
    assert not tab.page.get_by_role("link", name="Submit a job").is_visible()
    tab.page.unroute(failing)
    tab.page.get_by_role("link", name="Submit a job").wait_for()


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


def test_what_a_job_says_is_never_markup(
    opened: Open, service: Served, tenant: str, make_job: Callable[..., str]
) -> None:
    job = make_job("running", metadata={"note": HOSTILE})
    said = JobEvent(type="notice", message=HOSTILE)
    service.do(lambda parts: parts.events.append(job, said))
    error: dict[str, Any] = dict.fromkeys(["type", "title", "detail", "hint", "param"], HOSTILE)
    error |= {"category": "user", "status": 422}
    service.do(lambda parts: parts.registry.move(tenant, job, "failed", HOSTILE, error=error))
    tab = opened()
    answering(tab, Answers(job, time.time(), hostile=HOSTILE))
    tab.page.on("dialog", lambda dialog: tab.errors.append(dialog.message))
    for name in TABS:
        tab.open(f"#/jobs/{job}/{name}")
        tab.page.locator(f"[data-tab={name}][aria-current]").wait_for()
        if name == "plans":
            tab.page.locator("details.plan summary").first.click()
        told = tab.page.locator("main section" if name not in ("usage", "checkpoints") else "main")
        told.get_by_text("window.taken").first.wait_for()
        assert tab.page.locator("header.job [role=alert]").inner_text().count("<img src=x") >= 3
    assert_harmless(tab)


def test_a_name_is_never_markup(opened: Open, make_job: Callable[..., str]) -> None:
    """The service lets no such name in; the page does not rely on it."""
    job = make_job("running")
    tab = opened()

    def renamed(route: Any) -> None:
        answer = route.fetch().json()
        for each in answer.get("data", [answer]):
            each["name"] = HOSTILE
        route.fulfill(json=answer)

    tab.page.route("**/v1/jobs?*", renamed)
    tab.page.route(f"**/v1/jobs/{job}", renamed)
    tab.open("#/submit")
    tab.open("#/jobs")
    tab.page.get_by_role("link", name="<img src=x").click()
    tab.page.get_by_role("heading", name="<img src=x").wait_for()
    tab.page.get_by_role("button", name="Cancel job").click()
    tab.page.get_by_role("dialog", name="Cancel <img src=x").wait_for()
    tab.page.unroute_all(behavior="ignoreErrors")
    assert_harmless(tab)


def assert_harmless(tab: Watched) -> None:
    assert tab.page.evaluate("window.taken") is None
    assert tab.page.locator("main img, main script, dialog img, dialog script").count() == 0


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
    tab.page.keyboard.press("Enter")
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


def test_a_job_that_is_not_there_is_told(opened: Open) -> None:
    tab = opened()
    tab.open("#/jobs/job-nothing/samples")
    tab.page.get_by_role("heading", name="Nothing is here").wait_for()
    tab.page.get_by_role("alert").get_by_text("there is no job").wait_for()
    tab.page.get_by_role("link", name="All jobs").click()
    tab.page.get_by_text("No job has been submitted yet.").wait_for()
    assert tab.refused  # the job


def test_a_service_that_is_away_is_asked_again(opened: Open, make_job: Callable[..., str]) -> None:
    job = make_job("running")
    tab = opened()
    page = tab.page
    page.get_by_text(job).wait_for()
    tab.context.set_offline(True)
    page.get_by_role("link", name="copying").click()
    page.get_by_role("alert").get_by_text("The service cannot be reached").wait_for()
    page.get_by_text("Connection lost, trying again").wait_for()
    tab.context.set_offline(False)
    page.get_by_role("heading", name="copying").wait_for()
    page.get_by_text("Live", exact=True).wait_for()
    assert all("net::ERR" in each for each in tab.refused)


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
    assert "90.00\u00a0s" in total.get_by_role("row", name="all").inner_text()
    steps = tab.page.get_by_role("table", name="Instance time by step and function")
    steps.wait_for()
    assert steps.get_by_role("row").count() == 1 + 3 * STEPS
