"""Verdicts on cases of attacks."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from weft.errors import InternalError, WeftError

Payload = dict[str, Any]
"""A case: what can be written as JSON and suffices to run it again; "name" says shortly what it is."""

RIGHT, REFUSED, WRONG, NO_CASE = "right", "refused", "wrong", "no case"
INTERNAL, FOREIGN, CRASH, HANG = "internal error", "foreign exception", "crash", "hang"
FINDINGS = (WRONG, INTERNAL, FOREIGN, CRASH, HANG)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` is one of those above; `detail` says why a case was refused, or what was found."""

    kind: str
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS


def right() -> Verdict:
    """The result agrees with an oracle."""
    return Verdict(RIGHT)


def refused(reason: str) -> Verdict:
    """weft raised an error that explains what is wrong with the case."""
    return Verdict(REFUSED, reason)


def wrong(what: str) -> Verdict:
    """A wrong result, or none where an error was expected."""
    return Verdict(WRONG, what)


def no_case() -> Verdict:
    """The case does not exist, but checking that beforehand would take too long."""
    return Verdict(NO_CASE)


def judge_exception(error: BaseException) -> Verdict:
    """Return the verdict on an exception from weft."""
    if isinstance(error, InternalError):
        return Verdict(INTERNAL, _describe_error(error))
    if isinstance(error, WeftError):
        return refused(f"{type(error).__name__}: {error}")
    return Verdict(FOREIGN, _describe_error(error))


def _describe_error(error: BaseException) -> str:
    """Format the error with its innermost frames."""
    places = [
        f"{place.filename.rpartition('/')[2]}:{place.lineno}" for place in traceback.extract_tb(error.__traceback__)
    ]
    return f"{type(error).__name__}: {error} [{' > '.join(places[-4:])}]"
