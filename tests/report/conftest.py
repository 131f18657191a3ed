"""A browser for tests of pages, with a check for errors after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from report.browser import Page, browser, find_browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    command = find_browser()
    if command is None:
        pytest.skip("no chromium here (on Debian: apt-get install chromium)")
    with browser(command, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _check_page(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check for console errors, requests other than the page, and names that became scripts or elements."""
    if "page" not in request.fixturenames:
        yield
        return
    page: Page = request.getfixturevalue("page")
    page.problems.clear()
    page.requests.clear()
    yield
    assert page.problems == []
    assert all(address.startswith("file:") and ".html" in address for address in page.requests), page.requests
    assert page.evaluate("typeof window.broken") == "undefined"
    assert page.evaluate("document.images.length") == 0
