"""The number of blocks and threads that keep a GPU busy."""

from __future__ import annotations

from weft.ir.target import Rates


def enough_blocks(rates: Rates) -> int:
    """Return about one block per unit, as a power of two."""
    return 1 << (rates.compute_units.bit_length() - 1)


def enough_threads(rates: Rates, each: int) -> int:
    """Return about `each` threads per unit: 64 occupy it, 256 hide most latency, 512 saturate it."""
    return each * enough_blocks(rates)
