"""Guess unknown sizes, for decisions that affect only speed."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim, Symbol

UNKNOWN_SIZE = 64  # the guess for a size that is known only at run time


def guess_size(symbol: Symbol) -> int:
    """Guess a size within its bounds."""
    guess = max(UNKNOWN_SIZE, symbol.low or 0)
    return guess if symbol.high is None else min(guess, symbol.high)


def estimate(size: Dim) -> int:
    """Return a size, with guesses for its symbols."""
    if isinstance(size, int):
        return size
    try:
        return max(dims.evaluate(size, {symbol.name: guess_size(symbol) for symbol in dims.symbols(size)}), 0)
    except ZeroDivisionError:  # the guesses make a divisor 0
        return UNKNOWN_SIZE
