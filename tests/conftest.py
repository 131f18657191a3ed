"""What all tests share: `--slow`, hypothesis profiles, and a summary that names everything that was left out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import weft
import weft.backends.planned
import weft.compiler
from weft.ir.work import NativeSection
from weft.plan.sections import Plan, make_plan
from weft.plan.verify import verify_plan

LEFT_OUT = "left out"

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        marker = item.get_closest_marker("slow")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"slow ({marker.kwargs['reason']}); --slow includes it"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each skipped test, and each part of a test that it recorded as left out."""
    lines = [
        f"{report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}"
        for report in terminalreporter.stats.get("skipped", [])
    ]
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            lines += [f"{report.nodeid}: {value}" for name, value in report.user_properties if name == LEFT_OUT]
    if lines:
        terminalreporter.section(f"{len(lines)} left out")
        for line in sorted(set(lines)):
            terminalreporter.line(line)
    else:
        terminalreporter.line("Nothing was left out.")


ON_REFERENCE = ("ops", "test_bad_input", "test_damaged_files", "test_dynamic_sizes", "test_misfits", "test_passes",
                "test_random_graphs")  # fmt: skip
"""Tests of what models mean, thousands of them: their `auto` device is the reference, which compiles nothing.

The same on compiled devices is the business of tests/cpu and of the conformance runs.
"""


@pytest.fixture(autouse=True)
def _meaning_on_the_reference(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = request.path.relative_to(Path(__file__).parent)
    if inside.parts[0] in ON_REFERENCE or inside.stem in ON_REFERENCE:
        choose = weft.compiler.choose
        monkeypatch.setattr(weft.compiler, "choose", lambda name: choose("reference" if name == "auto" else name))


def _make_verified_plan(
    section: NativeSection, constants: Mapping[Any, Any], sizes: Mapping[str, int], *more: Any, **named: Any
) -> Plan:
    plan = make_plan(section, constants, sizes, *more, **named)
    verify_plan(section, plan, constants, sizes)
    return plan


@pytest.fixture(autouse=True)
def _verified_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan that a test makes is verified."""
    monkeypatch.setattr(weft.backends.planned, "make_plan", _make_verified_plan)
