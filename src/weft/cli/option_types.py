"""Types of numeric options, with bounds; other values are wrong usage."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError

MAX_COUNT = 1_000_000_000
MAX_PROCESSES = 256
MAX_SECONDS = 7 * 24 * 3600.0


def count(text: str) -> int:
    """Parse a count of at least 1."""
    return _parse_integer(text, 1, MAX_COUNT)


def process_count(text: str) -> int:
    """Parse a number of processes."""
    return _parse_integer(text, 1, MAX_PROCESSES)


def seed(text: str) -> int:
    """Parse the seed of a random generator."""
    return _parse_integer(text, 0, 2**64 - 1)


def seconds(text: str) -> float:
    """Parse a positive duration of at most a week."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is not a number of seconds") from None
    if not 0 < value <= MAX_SECONDS or not math.isfinite(value):
        raise ArgumentTypeError(f"{text[:40]} must be more than 0 seconds and at most {MAX_SECONDS:,.0f}")
    return value


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is not a number") from None
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"{text[:40]} must be more than 0")
    return value


def _parse_integer(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None
    if not least <= value <= most:
        raise ArgumentTypeError(f"{text[:40]} must be at least {least} and at most {most:,}")
    return value
