"""The summaries that the tests of the analysis use, and a browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.analysis.conftest import evidence_of_paper, study, summary, written

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

__all__ = ["evidence_of_paper", "study", "summary", "written"]


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """Skips the test where no Chromium is installed: ``apt-get install chromium``."""
    names = ("chromium", "chromium-browser", "chrome")
    installed = next(filter(None, map(shutil.which, names)), None)
    if installed is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visit(browser: "Browser", address: str, **context: object) -> Iterator["Page"]:
    """A page, which neither complains nor asks for anything but itself."""
    complaints, requests = list[str](), list[str]()

    def requested(route: "Route") -> None:
        requests.append(route.request.url)
        route.continue_()

    opened = browser.new_context(**{"viewport": {"width": 1366, "height": 768}, **context})
    opened.set_default_timeout(60_000)
    page = opened.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.route("**/*", requested)
    page.goto(address)
    try:
        yield page
    finally:
        opened.close()
    assert complaints == []
    assert len(requests) == 1, requests
