"""`pytest --fast` runs the first case of each test that is neither marked nor listed as long."""

from __future__ import annotations

from typing import Any

import pytest
from fast import CPU, LIST, LONG_BY_NATURE, VARIABLE, LongTests, exists, fast_ones, read_long_tests


class Item:
    def __init__(self, nodeid: str, *markers: str) -> None:
        self.nodeid, self.markers = nodeid, markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def test_first_cases_of_quick_tests() -> None:
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


def test_listed_tests_exist() -> None:
    """A renamed test would be missing from the list, and make `--fast` slow."""
    advice = f"{VARIABLE}=1 scripts/test --fast updates {LIST.name}"
    assert [name for name in read_long_tests() if not exists(name)] == [], advice


def test_list_is_updated(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fast.LIST", tmp_path / "list.txt")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    unmeasured = f"tests/test_fast.py::{test_listed_tests_exist.__name__}"
    (tmp_path / "list.txt").write_text(f"a.py::quick_now\n{unmeasured}\ntests/test_fast.py::test_removed\n")
    plugin = LongTests()
    for nodeid, seconds in (("a.py::long[1]", 0.2), ("a.py::b[1]", 0.1), ("a.py::b[2]", 9.0), ("a.py::quick_now", 0.1)):
        properties = [(CPU, seconds)]
        place = ("a.py", 1, "b")
        plugin.pytest_runtest_logreport(
            pytest.TestReport(nodeid, place, {}, "passed", None, "teardown", user_properties=properties)
        )
    plugin.pytest_sessionfinish()
    assert read_long_tests() == ["a.py::long", unmeasured]
