"""Test the site: it builds without a warning, documents all public names, and works in a browser without a server."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_origin

import pytest
from report.browser import Page, browser, find_browser

import weft
from weft.cli import COMMANDS

ROOT = Path(__file__).parent.parent.parent
WIDTHS = (390, 1280)
WIDE_PAGES = (  # with the widest tables and code
    "index",
    "guides/devices",
    "guides/migrating",
    "guides/packages",
    "reference/api/model",
    "reference/benchmarks",
    "reference/cli/run",
    "troubleshooting",
)
pytestmark = pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="pip install '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    command = find_browser()
    if command is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with browser(command, tmp_path_factory.mktemp("profile")) as opened_page:
        yield opened_page


def test_every_public_name_and_command_has_an_entry(site: Path) -> None:
    api = "".join(path.read_text(encoding="utf-8") for path in (site / "reference" / "api").glob("*.html"))
    missing = [name for name in weft.__all__ if not name.startswith("__") and f'id="{name.lower()}"' not in api]
    assert not missing
    for command in COMMANDS:
        assert f"weft {command}" in (site / "reference" / "cli" / f"{command}.html").read_text(encoding="utf-8")


def test_no_external_resources(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        fetched = re.findall(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//[^"'\s>]+""", text)
        fetched += re.findall(r"""<link[^>]*rel=["']?(?:stylesheet|preload|icon)[^>]*href=["']?https?:[^>]+""", text)
        assert not fetched, (path, fetched)


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_do_not_scroll_sideways(site: Path, page: Page, width: int) -> None:
    for name in WIDE_PAGES:
        page.open(site / f"{name}.html", width, 900, touch=width < 500, dark=width < 500)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if width < 500 else "default")
    assert not page.problems
    assert all(request.startswith(("file:", "data:")) for request in page.requests)


def test_search_works_without_a_server(site: Path, page: Page) -> None:
    page.open(site / "index.html", 1280, 900)
    page.evaluate("document.querySelector('[data-md-toggle=search]').click()")
    query = "document.querySelector('[data-md-component=search-query]')"
    page.evaluate(f"{query}.value = 'memory'; {query}.focus(); {query}.dispatchEvent(new Event('keyup'))")
    count = "document.querySelectorAll('.md-search-result__link').length"
    look = f"const look = () => ({count} ? done({count}) : setTimeout(look, 50)); look();"
    assert page.evaluate(f"new Promise((done) => {{ {look} }})") > 3
    assert not page.problems


def test_every_public_name_has_a_docstring() -> None:
    undocumented = []
    for name in weft.__all__:
        thing = getattr(weft, name)
        if name.startswith("__") or get_origin(thing) is not None:  # an alias
            continue
        if not inspect.getdoc(thing):
            undocumented.append(name)
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if not member.startswith("_") and inspect.isfunction(function) and not inspect.getdoc(function):
                    undocumented.append(f"{name}.{member}")
    assert not undocumented
