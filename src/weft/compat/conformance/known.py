"""The checked-in list of known failures, which may only shrink.

Each line is `name  # reason`; empty lines and lines that start with `#` are comments. A reason that starts with
`random:` is for a case that expects one particular draw of random numbers: it may pass by chance, and fail only by
other numbers in a tensor of the right shape and dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weft.compat.conformance.compare import DIFFERS
from weft.compat.conformance.records import CaseResult, ConformanceReport
from weft.errors import InputError

_BY_CHANCE = "random:"


def read_known_failures(path: Path) -> dict[str, str]:
    """The listed cases with their reasons."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot read the known failures: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("the known failures are no text", file=str(path)) from error
    known: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        name, _, reason = (part.strip() for part in line.partition("#"))
        if not name:
            continue
        if not reason or len(name.split()) > 1 or name in known:
            raise InputError(
                f"line {number} does not name one new case and its reason: {line.strip()!r}",
                hint="write 'test_name  # why it fails', each case once",
                file=str(path),
            )
        known[name] = reason
    return known


def judge(report: ConformanceReport, known: Mapping[str, str], *, whole: bool) -> list[str]:
    """What is wrong with a run beside a list: failures that are not in it, and entries that are no longer true.

    `whole` says that the run covered the suite, so that an entry without a case is an error too.
    """
    new = [f"failed: {case.name}: {case.reason}" for case in new_failures(report, known)]
    return new + stale_entries(report, known, whole=whole)


def new_failures(report: ConformanceReport, known: Mapping[str, str]) -> list[CaseResult]:
    """The failures that the list does not excuse."""
    return [case for case in report.cases if case.status == "failed" and not is_known(case, known)]


def is_known(case: CaseResult, known: Mapping[str, str]) -> bool:
    """Whether the list excuses this failure."""
    reason = known.get(case.name)
    return reason is not None and (not reason.startswith(_BY_CHANCE) or DIFFERS in case.reason)


def stale_entries(report: ConformanceReport, known: Mapping[str, str], *, whole: bool) -> list[str]:
    """The entries that must leave the list, a line for each."""
    passed = {case.name for case in report.cases if case.status == "passed"}
    run = {case.name for case in report.cases}
    lines: list[str] = []
    for name, reason in known.items():
        if name in passed and not reason.startswith(_BY_CHANCE):
            lines.append(f"{name}: passes now, remove it from the list of known failures")
        elif whole and name not in run:
            lines.append(f"{name}: the suite has no such case, remove it from the list of known failures")
    return lines
