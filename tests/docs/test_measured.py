"""Pages of what was measured say what the files in bench/results/ hold; WEFT_WRITE_DOCS=1 writes them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from docs import measured


@pytest.mark.parametrize("page", [measured.benchmarks, measured.conformance], ids=["benchmarks", "conformance"])
def test_the_page_is_what_the_files_hold(page: Callable[[], str]) -> None:
    path = measured.ROOT / "docs" / "reference" / f"{page.__name__}.md"
    if os.environ.get("WEFT_WRITE_DOCS"):
        path.write_text(page(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == page(), "run WEFT_WRITE_DOCS=1 pytest tests/docs/test_measured.py"
