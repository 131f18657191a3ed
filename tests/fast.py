"""What `pytest --fast` runs: the first case of every test, but for those that take long.

These are the ones that are marked (models, packages, attacks, slow ones) and those of `long_tests.txt`, which a whole
run with WEFT_WRITE_LONG_TESTS=1 writes anew. A test that is not in the list is run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("long_tests.txt")
VARIABLE = "WEFT_WRITE_LONG_TESTS"
LONG = 0.15  # seconds
LONG_BY_NATURE = ("models", "packages", "attack", "slow")


def fast_ones(items: Iterable[pytest.Item], listed: Iterable[str]) -> list[pytest.Item]:
    skipped = set(listed)
    chosen = []
    for item in items:
        name = function_of(item.nodeid)
        if name not in skipped and not any(item.get_closest_marker(marker) for marker in LONG_BY_NATURE):
            chosen.append(item)
            skipped.add(name)
    return chosen


def function_of(test: str) -> str:
    return test.partition("[")[0]


def read_long_tests() -> list[str]:
    return [line for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


class LongTests:
    """Notes what a run took, and writes the list: of a test with many cases, by the first one."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = function_of(report.nodeid)
        if self.first.setdefault(name, report.nodeid) == report.nodeid:
            self.seconds[name] += report.duration

    def pytest_sessionfinish(self) -> None:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            long = sorted(name for name, seconds in self.seconds.items() if seconds > LONG)
            head = f"# Tests that take more than {LONG} s: `pytest --fast` leaves them out. {VARIABLE}=1 writes it."
            LIST.write_text("\n".join((head, *long)) + "\n", encoding="utf-8")
