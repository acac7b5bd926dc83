"""The page against ``rlhfless serve``: real jobs, submitted, watched, paused and looked at."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Watched, chromium

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_MS = 400_000
"""For what comes to be at all: the machine may be busy with other things."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """(URL, admin key) of a service without settings."""
    command = [sys.executable, "-m", "rlhfless.cli.main", "serve", "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if k != "REDIS_URL"}
    with subprocess.Popen(
        [*command, "--data", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            told = ""
            for line in process.stdout:
                told += line
                if "Ctrl-C" in line:
                    break
            url = re.search(r"serves (\S+)", told)
            key = re.search(r"rlk_\w+", told)
            assert url and key, told
            yield url[1], key[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def until(page: Any, wanted: Any) -> None:
    """Wait for what may take long, or fail at once with what the page says instead."""
    wanted.or_(page.get_by_role("alert")).first.wait_for(timeout=WAIT_MS)
    assert not page.get_by_role("alert").count(), page.get_by_role("alert").all_inner_texts()


def until_state(page: Any, state: str) -> None:
    until(page, page.locator(f"h1 .pill.{state}"))


def test_the_quick_start_by_hand(tmp_path: Path) -> None:
    with chromium() as browser, serving(tmp_path / "data") as (url, key):
        tab = Watched(browser, url)
        tab.sign_in(key)
        submit_quick_start(tab)
        first = tab.page.url
        submit_short_job(tab)
        pause_and_resume(tab)
        watch_until_it_ends(tab, first)
        look_at_samples(tab)
        look_at_the_rest(tab, tmp_path)
        assert not tab.refused
        tab.close()


def submit_quick_start(tab: Watched) -> None:
    page = tab.page
    page.get_by_role("link", name="Submit one").click()
    page.get_by_role("button", name="Quick start").click()
    page.get_by_role("button", name="Estimate time and cost").click()
    until(page, page.get_by_role("slider", name="Time against cost"))
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("heading", name="quickstart").wait_for()


def submit_short_job(tab: Watched) -> None:
    """The quick start's task with fewer steps, as JSON."""
    page = tab.page
    page.get_by_role("link", name="Spec").click()
    page.get_by_role("button", name="Use for a new job").click()
    editor = page.get_by_label("Job", exact=True)
    editor.wait_for()
    spec = json.loads(editor.input_value())
    spec["name"] = "short"
    spec["training"]["steps"] = 8
    editor.fill(json.dumps(spec))
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("heading", name="short").wait_for()


def pause_and_resume(tab: Watched) -> None:
    page = tab.page
    until(page, page.get_by_text("step 1:"))
    page.get_by_role("button", name="Pause").click()
    until_state(page, "paused")
    page.get_by_role("button", name="Resume").click()
    until_state(page, "succeeded")
    page.get_by_text("8 of 8").wait_for()


def watch_until_it_ends(tab: Watched, place: str) -> None:
    page = tab.page
    page.goto(place)
    until_state(page, "succeeded")
    page.get_by_text("30 of 30").wait_for()
    page.locator("figure").first.get_by_text("step 30:").wait_for()
    assert page.locator("figure rect.busy").count() > 30
    reward = page.get_by_role("slider", name="Reward", exact=True)
    reward.focus()
    now = float(reward.get_attribute("aria-valuetext").split()[-1])
    page.keyboard.press("Home")
    assert now > float(reward.get_attribute("aria-valuetext").split()[-1])  # it has learned


def look_at_samples(tab: Watched) -> None:
    page = tab.page
    page.get_by_role("link", name="Samples").click()
    first = page.get_by_role("article").first
    first.get_by_text("Reward 1", exact=True).wait_for()
    first.get_by_text("exact_match 1").wait_for()
    page.get_by_label("Step").fill("1")
    page.keyboard.press("Enter")
    page.get_by_label("Order").select_option("worst first")
    first.get_by_text("Reward 0", exact=True).wait_for()
    page.get_by_label("Token log-probs").check()
    first.locator(".token").first.wait_for()
    first.get_by_text("Least likely tokens").click()
    first.get_by_role("row").nth(5).wait_for()


def look_at_the_rest(tab: Watched, folder: Path) -> None:
    page = tab.page
    page.get_by_role("link", name="Plans").click()
    page.locator("details.plan").first.get_by_text("Step 30").click()
    page.get_by_role("row").filter(has_text="chosen").wait_for()
    page.get_by_role("link", name="Usage").click()
    page.get_by_role("row", name="training").first.wait_for()
    page.get_by_role("link", name="Events").click()
    page.get_by_text("succeeded").first.wait_for()
    page.get_by_role("link", name="Logs").click()
    page.get_by_label("Log, the newest last").or_(
        page.get_by_text("Nothing has been")
    ).first.wait_for()
    page.get_by_role("link", name="Checkpoints").click()
    final = page.get_by_role("article").first
    final.get_by_text("(final)").wait_for()
    with page.expect_download() as download:
        final.get_by_role("button", name=re.compile("^config.json")).click()
    target = folder / "config.json"
    download.value.save_as(target)
    assert json.loads(target.read_text())["model_type"]
    page.get_by_role("link", name="Jobs", exact=True).click()
    row = page.get_by_role("row").filter(has_text="quickstart")
    row.get_by_text("30 of 30 steps").wait_for()
