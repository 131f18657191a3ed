"""The example programs as modules, and the files that they need, where those are here."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
sys.path.append(str(EXAMPLES))  # as for a program that is started there

import files  # noqa: E402 - found by the line above


@cache
def _here() -> dict[str, Path]:
    """Files by digest: those of the examples, and those that other tests have fetched."""
    wanted = {file.sha256 for file in files.FILES.values()}
    folders = (files.FOLDER, ROOT / ".models", ROOT / ".models" / "more")
    names = set(files.FILES) | {Path(file.member).name for file in files.FILES.values()}
    candidates = [
        path
        for folder in folders
        for path in folder.glob("*")
        if path.name.rpartition("__")[2] in names or path.name in names
    ]
    found = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in candidates if path.is_file()}
    return {digest: path for digest, path in found.items() if digest in wanted}


@pytest.fixture(autouse=True)
def _as_users_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without proofs of plans and kernels, which other tests ask for; what comes out is compared with other engines."""
    monkeypatch.delenv("WEFT_VERIFY", raising=False)


@pytest.fixture
def example_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Where a file of the examples is; the test is left out where it is not here. Programs find it in the same way."""

    def find(name: str) -> Path:
        path = _here().get(files.FILES[name].sha256)
        if path is None:
            pytest.skip(f"{name} is not here; `python examples/files.py {name}` gets it")
        return path

    for program in ("classify", "decoder_loop", "efficientnet", "read_text", "search", "transcribe"):
        monkeypatch.setattr(f"{program}.example_file", find)
    return find
