"""Test that every block of README and of docs/ runs; README.md here says how, and what is exempt."""

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
from docs.sample_files import prepare

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECONDS = 240


@pytest.fixture(scope="session")
def sample_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare the files of pages, with a key and a cache that all pages share, in all workers."""
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
def test_blocks_run(
    page: Path, sample_folder: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    name = page.relative_to(ROOT).as_posix()
    outcomes = run_page(page, sample_folder, tmp_path)
    for block in outcomes:
        if block["left_out"] is not None:
            record_property(LEFT_OUT, f"line {block['line']}: {block['left_out']}")
    wrong = [f"{name}:{block['line']}: {block['wrong']}" for block in outcomes if block["wrong"] is not None]
    assert not wrong, "\n\n".join(wrong)


def run_page(page: Path, sample_folder: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a page in a copy of the files, and return the outcome of each block."""
    pytest.importorskip("PIL", reason="pages have images: pip install pillow")
    copy, results = folder / "page", folder / "results.json"
    shutil.copytree(sample_folder / "files", copy)
    process = subprocess.run(
        [sys.executable, "-m", "docs.page_runner", page, copy, results],
        env=environment(sample_folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    outcomes: list[dict[str, Any]] = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    return outcomes


def environment(sample_folder: Path) -> dict[str, str]:
    """Return the environment of a terminal with 100 columns and no colors, with `weft` and `python` of the tests."""
    path = os.pathsep.join((str(sample_folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("WEFT_") and key != "FORCE_COLOR"
    }
    return inherited | {
        "PATH": path,
        "PYTHONPATH": paths,
        "WEFT_CACHE": str((sample_folder / "cache").resolve()),
        "WEFT_KEYS": str(sample_folder / "keys"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "BROWSER": "true",
        "OPENBLAS_NUM_THREADS": "1",
    }
