"""Choose the tests of `pytest --fast`: the first case of every test, except for long ones.

Long tests are those with certain marks (models, packages, attack, slow) and those of `long_tests.txt`. A run with
WEFT_WRITE_LONG_TESTS=1 updates the list: `scripts/test --fast` adds new long tests, a whole run also drops quick ones.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_name("long_tests.txt")
VARIABLE = "WEFT_WRITE_LONG_TESTS"
LONG = 0.15  # seconds of CPU time, which depend little on how busy the machine is
CPU = "CPU seconds"
Reporting = Generator[None, pytest.TestReport, pytest.TestReport]
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


def exists(test: str) -> bool:
    """Whether the file of a listed test still has a function of that name."""
    path, _, name = test.partition("::")
    file = ROOT / path
    return file.is_file() and f"def {name.rpartition('::')[2]}(" in file.read_text(encoding="utf-8")


def read_long_tests() -> list[str]:
    return [line for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


class LongTests:
    """Records the CPU time of the first case of each test, and updates the list."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self) -> None:
        self._start = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Reporting:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((CPU, cpu_seconds() - self._start))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and (spent := dict(report.user_properties).get(CPU)) is not None:
            self.seconds.setdefault(function_of(report.nodeid), float(str(spent)))

    def pytest_sessionfinish(self) -> None:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            long = {name for name, seconds in self.seconds.items() if seconds > LONG}
            long |= {name for name in read_long_tests() if name not in self.seconds and exists(name)}
            head = (
                f"# Tests that take more than {LONG} s: `pytest --fast` leaves them out. {VARIABLE}=1 updates the list."
            )
            LIST.write_text("\n".join((head, *sorted(long))) + "\n", encoding="utf-8")


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
