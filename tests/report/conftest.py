"""The summaries that the tests of the analysis use, and a browser."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.analysis.conftest import evidence_of_paper, study, summary, written

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
