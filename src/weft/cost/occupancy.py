"""How many blocks and threads keep a GPU busy, by the number of its units."""

from __future__ import annotations

from weft.ir.target import Rates


def enough_blocks(rates: Rates) -> int:
    """A block for every unit, about: a power of two."""
    return 1 << (rates.compute_units.bit_length() - 1)


def enough_threads(rates: Rates, each: int) -> int:
    """So many threads for every unit, about: 64 occupy it, 256 hide most waiting, with 512 nothing is left idle."""
    return each * enough_blocks(rates)
