"""Sizes as numbers, for decisions that cannot be wrong, only slow."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Statement

Body = tuple[Statement, ...]


UNKNOWN_SIZE = 64  # what a size is taken for when work is estimated and only a run will tell


def estimate(size: Dim) -> int:
    """A size as a number, for decisions that cannot be wrong, only slow."""
    if isinstance(size, int):
        return size
    guesses = {}
    for symbol in dims.symbols(size):
        at_least = max(UNKNOWN_SIZE, symbol.low or 0)
        guesses[symbol.name] = at_least if symbol.high is None else min(at_least, symbol.high)
    try:
        return max(dims.evaluate(size, guesses), 0)
    except ZeroDivisionError:  # the guesses make a divisor 0
        return UNKNOWN_SIZE
