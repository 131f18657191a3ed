"""The cases and results of a conformance run, as records without onnx types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal

from weft.records import dataclass

KINDS = ("node", "simple", "real", "pytorch-converted", "pytorch-operator")

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class CaseInfo:
    """A case of the suite. `ops` are the op types in its model, with the domain if it is not ai.onnx."""

    name: str
    kind: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case. `reason` is one line, empty if the case passed."""

    name: str
    kind: str
    ops: tuple[str, ...]
    status: Status
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Tally:
    """The numbers of cases by status."""

    passed: int
    failed: int
    skipped: int

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of a run, in the suite's order."""

    device: str
    onnx_version: str
    seconds: float
    cases: tuple[CaseResult, ...]

    @property
    def tally(self) -> Tally:
        return _tally(case.status for case in self.cases)

    @property
    def total(self) -> int:
        return len(self.cases)

    @property
    def passed(self) -> int:
        return self.tally.passed

    @property
    def failed(self) -> int:
        return self.tally.failed

    @property
    def skipped(self) -> int:
        return self.tally.skipped

    def by_kind(self) -> dict[str, Tally]:
        """Return a tally for each kind, in the order of the cases."""
        return _group(self.cases, lambda case: (case.kind,))

    def by_op(self) -> dict[str, Tally]:
        """Return a tally of the cases that use each op, sorted by op."""
        return dict(sorted(_group(self.cases, lambda case: case.ops).items()))

    def to_json(self) -> dict[str, Any]:
        """Return the report as values that `json` can write."""
        return {
            "device": self.device,
            "onnx_version": self.onnx_version,
            "seconds": round(self.seconds, 3),
            "total": self.total,
            **asdict(self.tally),
            "cases": [{**asdict(case), "seconds": round(case.seconds, 4)} for case in self.cases],
        }


def _group(cases: Iterable[CaseResult], keys: Callable[[CaseResult], tuple[str, ...]]) -> dict[str, Tally]:
    statuses: dict[str, list[Status]] = {}
    for case in cases:
        for key in keys(case):
            statuses.setdefault(key, []).append(case.status)
    return {key: _tally(group) for key, group in statuses.items()}


def _tally(statuses: Iterable[Status]) -> Tally:
    count = Counter(statuses)
    return Tally(count["passed"], count["failed"], count["skipped"])
