"""Test that the pages of measurements and the chart match bench/results/; WEFT_WRITE_DOCS=1 writes them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from docs import chart, measured


@pytest.mark.parametrize("page", [measured.benchmarks, measured.conformance], ids=["benchmarks", "conformance"])
def test_page_matches_the_results(page: Callable[[], str]) -> None:
    path = measured.ROOT / "docs" / "reference" / f"{page.__name__}.md"
    if os.environ.get("WEFT_WRITE_DOCS"):
        path.write_text(page(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == page(), "run WEFT_WRITE_DOCS=1 pytest tests/docs/test_measured.py"


@pytest.mark.parametrize("theme", chart.THEMES)
def test_chart_matches_the_results(theme: str) -> None:
    path = measured.ROOT / "docs" / "assets" / f"speed-{theme}.svg"
    drawing = chart.draw_speed_chart(theme)
    if os.environ.get("WEFT_WRITE_DOCS"):
        path.write_text(drawing, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == drawing, "run WEFT_WRITE_DOCS=1 pytest tests/docs/test_measured.py"


def test_readme_matches_the_results() -> None:
    readme = " ".join((measured.ROOT / "README.md").read_text(encoding="utf-8").split())
    count, means = measured.mean_run_times(tuple(chart.ENGINES))
    assert f"{means['onnxruntime']:.2f}× faster than onnxruntime" in readme
    assert f"{means['openvino']:.2f}× faster than OpenVINO on {count} models" in readme
    passed = {(entry["passed"], entry["total"]) for entry in map(measured.suite, measured.DEVICES)}
    assert all(f"{count} of the {total} cases" in readme for count, total in passed)
