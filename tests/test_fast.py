"""`pytest --fast` takes the first case of each test that is neither marked nor listed as long."""

from __future__ import annotations

from typing import Any

import pytest
from fast import LIST, LONG_BY_NATURE, LongTests, fast_ones, read_long_tests


class Item:
    def __init__(self, nodeid: str, *markers: str) -> None:
        self.nodeid, self.markers = nodeid, markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def test_first_cases_of_what_is_quick() -> None:
    items: list[Any] = [
        Item("a.py::test_one[x]"),
        Item("a.py::test_one[y]"),
        Item("a.py::TestMany::test_one[y]"),
        Item("a.py::test_long[x]"),
        *(Item(f"a.py::test_{marker}", marker) for marker in LONG_BY_NATURE),
        Item("b.py::test_one"),
    ]
    chosen = [item.nodeid for item in fast_ones(items, ["a.py::test_long"])]
    assert chosen == ["a.py::test_one[x]", "a.py::TestMany::test_one[y]", "b.py::test_one"]


def test_every_file_that_is_listed_exists() -> None:
    """The list may lag behind tests that come; it names none that have gone with their files."""
    root = LIST.parent.parent
    assert [name for name in read_long_tests() if not (root / name.partition("::")[0]).exists()] == []


def test_the_list_is_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fast.LIST", tmp_path / "list.txt")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    noted = LongTests()
    for nodeid, seconds in (("a.py::b[1]", 0.1), ("a.py::b[2]", 9.0), ("a.py::b[1]", 0.1), ("a.py::c", 0.1)):
        report = pytest.TestReport(nodeid, ("a.py", 1, "b"), {}, "passed", None, "call", duration=seconds)
        noted.pytest_runtest_logreport(report)
    noted.pytest_sessionfinish()
    assert read_long_tests() == ["a.py::b"]
