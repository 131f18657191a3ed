"""Shared by all tests: `--slow`, `--fast`, hypothesis profiles, and a summary of everything that was skipped.

All tests run with WEFT_VERIFY=1: every kernel and every plan is verified, in the processes
that tests start, too. Those import this tree's sources.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack.devices import missing
from fast import VARIABLE as WRITE_LONG_TESTS
from fast import LongTests, fast_ones, read_long_tests
from hypothesis import settings

import weft
import weft.backends.device_section
import weft.loading
import weft.plan.sections
from weft.ir.verification import VARIABLE

HERE = Path(__file__).parent
os.environ[VARIABLE] = "1"
os.environ["PYTHONPATH"] = os.pathsep.join((str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])))

LEFT_OUT = "left out"

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")
    parser.addoption("--fast", action="store_true", help="run the first case of each quick test")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(WRITE_LONG_TESTS):
        config.pluginmanager.register(LongTests())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable garbage collection, which takes a third of the time of collecting tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if unnamed := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"workers would name {unnamed[0]} differently: give its cases ids")
    if config.getoption("--fast"):
        chosen = fast_ones(items, read_long_tests())
        config.hook.pytest_deselected(items=[*set(items) - set(chosen)])
        items[:] = chosen
    items.sort(
        key=lambda item: item.get_closest_marker("models") is None
    )  # long ones first, so that workers end together
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


ON_REFERENCE = ("opset", "test_bad_input", "test_damaged_files", "test_dynamic_sizes", "test_misfits", "test_passes",
                "test_random_graphs")  # fmt: skip
"""Thousands of tests of op semantics: their `auto` device is the reference, which compiles nothing.

Compiled devices are covered by tests/backends, tests/kernels and the conformance runs.
"""


@pytest.fixture(autouse=True)
def _use_the_reference(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = request.path.relative_to(HERE)
    if inside.parts[0] in ON_REFERENCE or inside.stem in ON_REFERENCE:
        monkeypatch.setenv("WEFT_DEVICE", "reference")


@pytest.fixture(autouse=True)
def _skip_missing_devices(request: pytest.FixtureRequest) -> None:
    """Skip cases with `device="webgpu:0"` without a GPU or a software rasteriser."""
    parameters = getattr(request.node, "callspec", None)
    device = None if parameters is None else parameters.params.get("device")
    if isinstance(device, str) and device.startswith("webgpu:") and (reason := missing(device)):
        pytest.skip(reason)


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable plan verification, for tests that count the cost of planning."""
    for module in (weft.plan.sections, weft.backends.device_section):
        monkeypatch.setattr(module, "is_verifying", lambda: False)
