"""Pages of what was measured say what the files in bench/results/ hold; WEFT_WRITE_DOCS=1 writes them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from docs import chart, measured


@pytest.mark.parametrize("page", [measured.benchmarks, measured.conformance], ids=["benchmarks", "conformance"])
def test_the_page_is_what_the_files_hold(page: Callable[[], str]) -> None:
    path = measured.ROOT / "docs" / "reference" / f"{page.__name__}.md"
    if os.environ.get("WEFT_WRITE_DOCS"):
        path.write_text(page(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == page(), "run WEFT_WRITE_DOCS=1 pytest tests/docs/test_measured.py"


@pytest.mark.parametrize("theme", chart.THEMES)
def test_the_chart_is_what_the_files_hold(theme: str) -> None:
    path = measured.ROOT / "docs" / "assets" / f"speed-{theme}.svg"
    drawing = chart.draw_speed_chart(theme)
    if os.environ.get("WEFT_WRITE_DOCS"):
        path.write_text(drawing, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == drawing, "run WEFT_WRITE_DOCS=1 pytest tests/docs/test_measured.py"


def test_readme_says_the_same() -> None:
    readme = " ".join((measured.ROOT / "README.md").read_text(encoding="utf-8").split())
    count, means = measured.mean_run_times(tuple(chart.ENGINES))
    assert f"{means['onnxruntime']:.2f}× faster than onnxruntime" in readme
    assert f"{means['openvino']:.2f}× faster than OpenVINO on {count} models" in readme
    passed = {(entry["passed"], entry["total"]) for entry in map(measured.suite, measured.DEVICES)}
    assert {f"{some} of the {all_of_them} cases" in readme for some, all_of_them in passed} == {True}
