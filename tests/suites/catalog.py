"""The suites: the tests that run, those that are left out with their reasons, and the expected differences.

`sources.txt` pins the source distributions, `requirements.txt` the packages that the tests import. The folder
`differences` has a list for each suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENT = (ROOT / ".suites").resolve()
SEPARATOR = "  # "


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one package."""

    name: str
    min_passes: int
    """With onnxruntime. If fewer tests pass, the environment is broken."""
    deselected: Mapping[str, str] = field(default_factory=dict)
    """Prefix of test ids -> reason."""

    @property
    def folder(self) -> Path:
        return ENVIRONMENT / "tests" / self.name

    @property
    def differences(self) -> Path:
        return HERE / "differences" / f"{self.name}.txt"


SUITES = (
    Suite("ndonnx", min_passes=5300),
    Suite("onnxconverter-common", min_passes=24),
    Suite(
        "qonnx",
        min_passes=750,
        deselected={"tests/transformation/test_conv_lowering.py": "13,893 cases of one transformation"},
    ),
    Suite(
        "skl2onnx",
        min_passes=950,
        deselected={
            "tests/test_sklearn_gaussian_process_regressor.py::TestSklearnGaussianProcessRegressor::test_x_issue_789": (
                "two tests that take minutes with either engine"
            )
        },
    ),
    Suite("spox", min_passes=640),
)


def read_differences(path: Path) -> dict[str, str]:
    """Read a list of expected differences: test id -> reason."""
    differences: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        test, separator, reason = line.rpartition(SEPARATOR)
        if not separator or not test or not reason.strip() or test in differences:
            raise ValueError(f"{path}:{number}: write 'test id{SEPARATOR}reason', each test once: {line!r}")
        differences[test] = reason.strip()
    return differences


def compare_outcomes(
    expected: Mapping[str, str], actual: Mapping[str, str], differences: Mapping[str, str]
) -> list[str]:
    """Describe the tests that only onnxruntime passes and that are not listed, and the entries to remove."""
    regressions = {
        test: actual.get(test, "did not run")
        for test, outcome in expected.items()
        if outcome == "passed" and actual.get(test) != "passed"
    }
    return [f"{outcome} with weft: {test}" for test, outcome in regressions.items() if test not in differences] + [
        f"remove from the list: {test}" for test in differences if test not in regressions
    ]
