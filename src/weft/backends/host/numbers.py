"""Evaluate the numbers of plans in native code."""

from __future__ import annotations

from weft.backends.host.runner import runner
from weft.ir.arrays import Array
from weft.plan.numbers import NumberTable


def compute_natively(table: NumberTable, values: Array) -> None:
    """Evaluate the operations of a table on its slots."""
    start = values.ctypes.data
    runner().compute(table.operations.ctypes.data, len(table.operations), start, start + 8 * table.first_result)
