"""Evaluate the numbers of plans in native code."""

from __future__ import annotations

from weft.backends.host.addresses import address
from weft.backends.host.runner import runner
from weft.ir.arrays import Array
from weft.plan.numbers import NumberTable


def compute_natively(table: NumberTable, values: Array) -> bool:
    """Evaluate the operations of a table on its slots, and return whether all checks hold."""
    start, operations, checks = address(values), table.operations, table.checks
    results = start + 8 * table.first_result
    return bool(runner().compute(address(operations), len(operations), start, results, address(checks), len(checks)))
