"""Operands of attention's expressions: which ones are loaded, and their numbers within one kernel."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.scalar import Load, Scalar, loads, rebuild


def find_operands(*expressions: Scalar) -> tuple[int, ...]:
    """Return the operands that expressions load from, in order."""
    return tuple(sorted({load.operand for expression in expressions for load in loads(expression)}))


def renumber_operands(expression: Scalar, used: Sequence[int]) -> Scalar:
    """Renumber the operands of an expression by their index in `used`."""
    return rebuild(expression, lambda load: Load(used.index(load.operand), load.indices, load.dtype))
