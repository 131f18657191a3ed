"""Import the example programs as modules, and find the files that they need."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
sys.path.append(str(EXAMPLES))  # as Python does for a program in that folder

import files  # noqa: E402 - needs the line above


@cache
def _find_local_files() -> dict[str, Path]:
    """Return the available files of the examples by digest."""
    digests = {file.sha256 for file in files.FILES.values()}
    folders = (files.FOLDER, ROOT / ".models", ROOT / ".models" / "more")
    names = set(files.FILES) | {Path(file.member).name for file in files.FILES.values()}
    candidates = [
        path
        for folder in folders
        for path in folder.glob("*")
        if path.name.rpartition("__")[2] in names or path.name in names
    ]
    available = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in candidates if path.is_file()}
    return {digest: path for digest, path in available.items() if digest in digests}


@pytest.fixture(autouse=True)
def _without_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without verification of plans and kernels; results are compared with other engines."""
    monkeypatch.delenv("WEFT_VERIFY", raising=False)


@pytest.fixture
def example_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that finds a file of the examples, or skips the test; programs use it too."""

    def find(name: str) -> Path:
        path = _find_local_files().get(files.FILES[name].sha256)
        if path is None:
            pytest.skip(f"{name} is missing; `python examples/files.py {name}` gets it")
        return path

    for program in ("classify", "decoder_loop", "efficientnet", "read_text", "search", "transcribe"):
        monkeypatch.setattr(f"{program}.example_file", find)
    return find
