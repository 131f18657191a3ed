"""What the templates of attention share: the operands that their expressions use."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attention import AT_HAND
from weft.ir.scalar import Load, Scalar, loads, rebuild


def used_operands(*expressions: Scalar) -> tuple[int, ...]:
    """The operands that expressions load from, in order."""
    return tuple(sorted({load.operand for e in expressions for load in loads(e) if load.operand != AT_HAND}))


def with_operands(expression: Scalar, used: Sequence[int], first: int = 0) -> Scalar:
    """The expression with its operands numbered by their places among those used."""

    def renumber(load: Load) -> Scalar:
        number = load.operand if load.operand == AT_HAND else first + used.index(load.operand)
        return Load(number, load.indices, load.dtype)

    return rebuild(expression, renumber)
