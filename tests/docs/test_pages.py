"""Every block of README and of the pages of docs/ runs; README.md here says how, and what may be left out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LEFT_OUT
from docs.prepared import prepare

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECONDS = 240


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages find; beside them a key, and a cache that all pages share, in all workers."""
    folder = tmp_path_factory.mktemp("pages")
    prepare(folder / "files")
    programs = folder / "bin"
    programs.mkdir()
    weft = programs / "weft"
    weft.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m weft "$@"\n', encoding="utf-8")
    weft.chmod(0o755)
    workers = "PYTEST_XDIST_WORKER" in os.environ
    shared = tmp_path_factory.getbasetemp().parent if workers else folder
    (folder / "cache").symlink_to(shared / "pages-cache")
    (shared / "pages-cache").mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.mark.skipif(shutil.which("bash") is None, reason="pages have commands for bash")
@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_blocks_run(page: Path, prepared: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    name = page.relative_to(ROOT).as_posix()
    found = run_page(page, prepared, tmp_path)
    for block in found:
        if block["left_out"] is not None:
            record_property(LEFT_OUT, f"line {block['line']}: {block['left_out']}")
    wrong = [f"{name}:{block['line']}: {block['wrong']}" for block in found if block["wrong"] is not None]
    assert not wrong, "\n\n".join(wrong)


def run_page(page: Path, prepared: Path, folder: Path) -> list[dict[str, Any]]:
    """What became of each block of a page, run in a copy of the files."""
    pytest.importorskip("PIL", reason="pages have pictures: pip install pillow")
    place, results = folder / "page", folder / "results.json"
    shutil.copytree(prepared / "files", place)
    done = subprocess.run(
        [sys.executable, "-m", "docs.page_runner", page, place, results],
        env=environment(prepared),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    return found


def environment(prepared: Path) -> dict[str, str]:
    """Of a terminal of 100 columns without colours, in which `weft` and `python` are those that run the tests."""
    path = os.pathsep.join((str(prepared / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    given = {key: value for key, value in os.environ.items() if not key.startswith("WEFT_") and key != "FORCE_COLOR"}
    return given | {
        "PATH": path,
        "PYTHONPATH": paths,
        "WEFT_CACHE": str((prepared / "cache").resolve()),
        "WEFT_KEYS": str(prepared / "keys"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "BROWSER": "true",
        "OPENBLAS_NUM_THREADS": "1",
    }
