"""Values of options: numbers within the bounds in which they mean something. What lies outside is wrong usage."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError

MOST = 1_000_000_000
LONGEST = 7 * 24 * 3600.0  # seconds


def count(text: str) -> int:
    """A number of things, at least 1."""
    return _whole(text, 1, MOST)


def few(text: str) -> int:
    """A number of processes, at least 1."""
    return _whole(text, 1, 256)


def seed(text: str) -> int:
    """What random numbers begin with."""
    return _whole(text, 0, 2**64 - 1)


def seconds(text: str) -> float:
    """A time that passes, and ends."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is not a number of seconds") from None
    if not 0 < value <= LONGEST or not math.isfinite(value):
        raise ArgumentTypeError(f"{text[:40]} must be more than 0 seconds and at most {LONGEST:,.0f}")
    return value


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is not a number") from None
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"{text[:40]} must be more than 0")
    return value


def _whole(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None
    if not least <= value <= most:
        raise ArgumentTypeError(f"{text[:40]} must be at least {least} and at most {most:,}")
    return value
