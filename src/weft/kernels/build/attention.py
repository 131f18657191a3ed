"""What the templates of attention share: the operands that their expressions use."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.scalar import Load, Scalar, loads, rebuild


def used_operands(*expressions: Scalar) -> tuple[int, ...]:
    """The operands that expressions load from, in order."""
    return tuple(sorted({load.operand for expression in expressions for load in loads(expression)}))


def with_operands(expression: Scalar, used: Sequence[int]) -> Scalar:
    """The expression with its operands numbered by their places among those used."""
    return rebuild(expression, lambda load: Load(used.index(load.operand), load.indices, load.dtype))
