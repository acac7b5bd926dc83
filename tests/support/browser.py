"""A real Chromium for tests of the page, and what it complained about."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
]
DESKTOP = {"width": 1200, "height": 900}
PHONE = {"width": 360, "height": 740}


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser is installed; looked for {', '.join(NAMES)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A tab, and what went wrong in it. A browser also calls it an error when an answer is a
    refusal; those are told in ``refused``."""

    def __init__(self, browser: Any, base: str, **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": DESKTOP} | options))
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)  # the machine may be busy
        self.base = base
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.refused: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type not in ("error", "warning"):
            return
        refusal = "Failed to load resource" in message.text
        (self.refused if refusal else self.errors).append(message.text)

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("blob", "data") and parts.netloc != urlsplit(self.base).netloc:
            self.elsewhere.append(request.url)

    def open(self, place: str) -> None:
        self.page.goto(f"{self.base}/{place}")

    def sign_in(self, key: str) -> None:
        self.open("")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", name="Jobs").wait_for()

    def close(self) -> None:
        self.context.close()
        assert not self.errors, self.errors
        assert not self.elsewhere, self.elsewhere
