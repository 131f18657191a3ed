"""Tests of other packages that pass with onnxruntime pass with weft too, except for lists that may only shrink.

`scripts/setup-suites` installs the suites. Each runs twice, in separate processes: with onnxruntime, and with
WEFT_COMPAT=onnxruntime. A test that only onnxruntime passes must be listed in `differences/<suite>.txt` with its
reason, and must be removed from the list when weft passes it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from suites.catalog import ENVIRONMENT, HERE, ROOT, SUITES, Suite, compare_outcomes, read_differences
from suites.record_outcomes import VARIABLE, read_outcomes

PYTHON = ENVIRONMENT / "bin" / "python"
TIMEOUT = 3600  # seconds, for each of the two runs
WORKERS = 2
ENGINES = {"onnxruntime": ENVIRONMENT, "weft": ROOT / "src" / "weft" / "compat"}
"""Engine -> the folder from which tests import `onnxruntime`."""


@pytest.mark.slow(reason="a suite takes up to half an hour")
@pytest.mark.timeout(2 * TIMEOUT + 60)
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_suite(suite: Suite, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    if not suite.folder.exists():
        pytest.skip(f"the tests of {suite.name} are not installed: scripts/setup-suites installs them")
    expected, actual = (_run_suite(suite, engine, tmp_path) for engine in ENGINES)
    passes = sum(outcome == "passed" for outcome in expected.values())
    for tests, reason in suite.deselected.items():
        record_property("left out", f"{tests} of {suite.name}: {reason}")
    record_property("left out", f"{len(expected) - passes} tests of {suite.name} that onnxruntime does not pass")
    assert passes >= suite.min_passes, f"only {passes} tests of {suite.name} pass with onnxruntime"
    if problems := compare_outcomes(expected, actual, read_differences(suite.differences)):
        pytest.fail("\n".join((f"{suite.name}, with logs in {tmp_path}:", *problems)), pytrace=False)


def test_compare_outcomes() -> None:
    expected = {"a": "passed", "b": "passed", "c": "passed", "d": "failed", "e": "passed", "f": "passed"}
    actual = {"a": "passed", "b": "failed", "c": "passed", "d": "failed", "e": "skipped"}
    differences = {"b": "reason", "c": "reason"}
    assert compare_outcomes(expected, actual, differences) == [
        "skipped with weft: e",
        "did not run with weft: f",
        "remove from the list: c",
    ]


def test_lists_are_complete(tmp_path: Path) -> None:
    lists = {path.stem for path in (HERE / "differences").glob("*.txt")}
    sources = {
        line.partition("==")[0] for line in (HERE / "sources.txt").read_text().splitlines() if not line.startswith("#")
    }
    assert lists == sources == {suite.name for suite in SUITES}
    for suite in SUITES:
        read_differences(suite.differences)
    (tmp_path / "list.txt").write_text("tests/a.py::test[x # y]  # reason\n")
    assert read_differences(tmp_path / "list.txt") == {"tests/a.py::test[x # y]": "reason"}
    (tmp_path / "list.txt").write_text("tests/a.py::test\n")
    with pytest.raises(ValueError, match=r"list\.txt:1: write"):
        read_differences(tmp_path / "list.txt")


def _run_suite(suite: Suite, engine: str, folder: Path) -> dict[str, str]:
    """Run a suite with an engine and return each test's outcome; keep pytest's output beside the outcomes."""
    outcomes, log = folder / f"{engine}.jsonl", folder / f"{engine}.log"
    # Without WEFT_VERIFY and PYTHONPATH, the suites run weft like users of these packages.
    removed = ("WEFT_", "PYTHONPATH", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    environment |= {
        VARIABLE: str(outcomes),
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    if engine == "weft":
        environment["WEFT_COMPAT"] = "onnxruntime"
    options = (f"--numprocesses={WORKERS}", *(f"--deselect={tests}" for tests in suite.deselected))
    command = [PYTHON, "-m", "pytest", "-c", HERE / "options.ini", f"--rootdir={suite.folder}", *options, "tests"]
    with log.open("w") as output:
        subprocess.run(command, cwd=suite.folder, env=environment, stdout=output, stderr=output, timeout=TIMEOUT)
    assert outcomes.exists(), log.read_text()[-5000:]
    module, results = read_outcomes(outcomes)
    assert module.startswith(str(ENGINES[engine])), f"{module} is not {engine}"
    return results
