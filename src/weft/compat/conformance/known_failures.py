"""Lists of known failures, which may only shrink.

Each line is `name  # reason`; empty lines and lines that start with `#` are ignored. A reason that starts with
`random:` marks a case that expects particular random numbers: it may pass by chance, and may fail only by the values
of a tensor of the right shape and dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weft.compat.conformance.compare import DIFFERS
from weft.compat.conformance.records import CaseResult, ConformanceReport
from weft.errors import InputError

_RANDOM = "random:"


def read_known_failures(path: Path) -> dict[str, str]:
    """Read the reason of each listed case."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot read the known failures: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("the list of known failures is not UTF-8 text", file=str(path)) from error
    reasons: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        name, _, reason = (part.strip() for part in line.partition("#"))
        if not name:
            continue
        if not reason or len(name.split()) > 1 or name in reasons:
            raise InputError(
                f"line {number} does not name one new case and its reason: {line.strip()!r}",
                hint="write 'test_name  # why it fails', each case once",
                file=str(path),
            )
        reasons[name] = reason
    return reasons


def new_failures(report: ConformanceReport, reasons: Mapping[str, str]) -> list[CaseResult]:
    """Return the failures that the list does not have."""
    return [case for case in report.cases if case.status == "failed" and not is_known(case, reasons)]


def is_known(case: CaseResult, reasons: Mapping[str, str]) -> bool:
    """Whether the list has this failure."""
    reason = reasons.get(case.name)
    return reason is not None and (not reason.startswith(_RANDOM) or DIFFERS in case.reason)


def stale_entries(report: ConformanceReport, reasons: Mapping[str, str], *, whole: bool) -> list[str]:
    """Return a line for each entry that must be removed from the list.

    `whole`: the run covered the suite, so an entry without a case must be removed too.
    """
    passed = {case.name for case in report.cases if case.status == "passed"}
    run = {case.name for case in report.cases}
    lines: list[str] = []
    for name, reason in reasons.items():
        if name in passed and not reason.startswith(_RANDOM):
            lines.append(f"{name}: passes now, remove it from the list of known failures")
        elif whole and name not in run:
            lines.append(f"{name}: the suite has no such case, remove it from the list of known failures")
    return lines
