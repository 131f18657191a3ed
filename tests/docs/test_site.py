"""The site builds without a warning, says all of the public interface, and works in a browser, as files, on its own."""

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
pytestmark = pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="pip install '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    command = find_browser()
    if command is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with browser(command, tmp_path_factory.mktemp("profile")) as page:
        yield page


def test_every_public_name_and_command_is_there(site: Path) -> None:
    api = "".join(path.read_text(encoding="utf-8") for path in (site / "reference" / "api").glob("*.html"))
    missing = [name for name in weft.__all__ if not name.startswith("__") and f'id="{name.lower()}"' not in api]
    assert not missing
    for command in COMMANDS:
        assert f"weft {command}" in (site / "reference" / "cli" / f"{command}.html").read_text(encoding="utf-8")


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        fetched = re.findall(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//[^"'\s>]+""", text)
        fetched += re.findall(r"""<link[^>]*rel=["']?(?:stylesheet|preload|icon)[^>]*href=["']?https?:[^>]+""", text)
        assert not fetched, (path, fetched)


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_and_are_quiet(site: Path, opened: Page, width: int) -> None:
    for name in ("index.html", "reference/api/model.html", "reference/cli/run.html", "guides/packages.html"):
        opened.open(site / name, width, 900, touch=width < 500, dark=width < 500)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width, name
        assert opened.evaluate("document.body.dataset.mdColorScheme") == ("slate" if width < 500 else "default")
    assert not opened.problems
    assert all(request.startswith(("file:", "data:")) for request in opened.requests)


def test_search_works_in_files(site: Path, opened: Page) -> None:
    opened.open(site / "index.html", 1280, 900)
    opened.evaluate("document.querySelector('[data-md-toggle=search]').click()")
    query = "document.querySelector('[data-md-component=search-query]')"
    opened.evaluate(f"{query}.value = 'memory'; {query}.focus(); {query}.dispatchEvent(new Event('keyup'))")
    found = "document.querySelectorAll('.md-search-result__link').length"
    look = f"const look = () => ({found} ? done({found}) : setTimeout(look, 50)); look();"
    assert opened.evaluate(f"new Promise((done) => {{ {look} }})") > 3
    assert not opened.problems


def test_all_that_is_public_is_told() -> None:
    silent = []
    for name in weft.__all__:
        thing = getattr(weft, name)
        if name.startswith("__") or get_origin(thing) is not None:  # which is a name for several types
            continue
        if not inspect.getdoc(thing):
            silent.append(name)
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if not member.startswith("_") and inspect.isfunction(function) and not inspect.getdoc(function):
                    silent.append(f"{name}.{member}")
    assert not silent
