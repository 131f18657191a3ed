"""Bound the absolute values that an expression computes, which proves that none is infinite or NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import DType
from weft.ir.program import Value
from weft.ir.scalar import Apply, Literal, Load, Scalar

BYTES = (DType.uint8, DType.int8)
LARGEST = 2.0**60  # larger bounds count as unknown; a product of two such numbers is finite in float32
_MANY = 1 << 16  # constants with more elements are not searched for their maximum


class Magnitudes:
    """Bounds for one map's expression; its operands are constants, bytes, sums of bytes, or in `operand_bounds`."""

    def __init__(
        self,
        operands: Sequence[Value],
        constants: Mapping[Value, Any],
        operand_bounds: Mapping[Value, float] | None = None,
    ) -> None:
        self.operands, self.constants, self.operand_bounds = operands, constants, operand_bounds or {}
        self.bounds: dict[int, float | None] = {}
        self.alive: list[Scalar] = []  # keeps ids unique

    def of(self, node: Scalar) -> float | None:
        """Return an upper bound of the absolute value, or None if it may be infinite or NaN."""
        if id(node) not in self.bounds:
            self.alive.append(node)
            bound = self._compute(node)
            self.bounds[id(node)] = bound if bound is not None and bound <= LARGEST else None
        return self.bounds[id(node)]

    def _compute(self, node: Scalar) -> float | None:
        match node:
            case Literal(value):
                return abs(float(value)) if isinstance(value, (int, float)) and np.isfinite(value) else None
            case Load(operand, _, dtype):
                return self._operand_bound(self.operands[operand], dtype)
            case Apply("cast", _, dtype) if dtype in BYTES:
                return 255.0
            case Apply("cast" | "negate" | "absolute" | "round_half_even", (inner,)):
                return self.of(inner)
            case Apply("add" | "subtract", (left, right)):
                a, b = self.of(left), self.of(right)
                return None if a is None or b is None else a + b
            case Apply("multiply", (left, right)):
                a, b = self.of(left), self.of(right)
                return None if a is None or b is None else a * b
            case Apply("minimum" | "maximum", (left, right)):
                a, b = self.of(left), self.of(right)
                return None if a is None or b is None else max(a, b)
        return None

    def _operand_bound(self, value: Value, dtype: DType) -> float | None:
        if dtype in BYTES:
            return 255.0
        if dtype is DType.int32:
            return 2.0**31
        content = self.constants.get(value)
        if content is None:
            return self.operand_bounds.get(value)
        if dtype is not DType.float32 or not 0 < np.size(content) <= _MANY:
            return None
        largest = float(np.abs(np.asarray(content, np.float32)).max())
        return largest if np.isfinite(largest) else None
