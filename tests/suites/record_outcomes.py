"""A pytest plugin that writes each test's outcome to the file that SUITE_OUTCOMES names.

The first line is the path of the module `onnxruntime` that the tests import, each further line a JSON list of a test's
id and one outcome. A test has several outcomes (setup, call, teardown, subtests).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

VARIABLE = "SUITE_OUTCOMES"
PASSED = "passed"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(OutcomeRecorder(Path(os.environ[VARIABLE])))


class OutcomeRecorder:
    """Append each outcome at once, so that an interrupted run leaves the outcomes before."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self._path = path
        self._path.write_text(f"{onnxruntime.__file__}\n", encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, outcome]) + "\n")


def read_outcomes(path: Path) -> tuple[str, dict[str, str]]:
    """Read the path of `onnxruntime`, and each test's outcome: `passed` if all of its outcomes are."""
    module, *lines = path.read_text(encoding="utf-8").splitlines()
    outcomes: dict[str, str] = {}
    for line in lines:
        test, outcome = json.loads(line)
        if outcomes.get(test, PASSED) == PASSED:
            outcomes[test] = outcome
    return module, outcomes
