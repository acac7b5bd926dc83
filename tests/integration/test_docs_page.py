"""``/docs`` in a real browser: the API's document is shown and can be tried, and nothing comes from
elsewhere."""

from pathlib import Path

import pytest

from tests.support.browser import Watched, chromium
from tests.support.served import served

pytestmark = pytest.mark.slow


def test_the_api_can_be_read_and_tried(tmp_path: Path) -> None:
    with served(tmp_path) as service, chromium() as browser:
        _, key = service.do(lambda parts: parts.keys.create("acme", "test", "read"))
        tab = Watched(browser, service.url)
        tab.open("docs")
        page = tab.page
        page.get_by_role("button", name="Authorize").first.click()
        page.get_by_label("auth-bearer-value").fill(key)
        page.get_by_role("button", name="Apply credentials").click()
        page.get_by_role("button", name="Close").click()
        page.locator("#operations-tenant-tenant_v1_tenant_get").get_by_role("button").first.click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table").get_by_text('"acme"').wait_for()
        tab.close()
