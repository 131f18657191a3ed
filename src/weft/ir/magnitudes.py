"""How large the numbers are that an expression computes, where that is certain: then none is infinite or NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import DType
from weft.ir.program import Value
from weft.ir.scalar import Apply, Literal, Load, Scalar

BYTES = (DType.uint8, DType.int8)
LARGEST = 2.0**60  # beyond it nothing is said: products of two such numbers still are float32
_MANY = 1 << 16  # elements of a constant whose largest is not looked for


class Magnitudes:
    """Those of one map's expression, whose operands are constants, bytes, sums of bytes, or known by value."""

    def __init__(
        self, operands: Sequence[Value], constants: Mapping[Value, Any], known: Mapping[Value, float] | None = None
    ) -> None:
        self.operands, self.constants, self.known = operands, constants, known or {}
        self.done: dict[int, float | None] = {}
        self.alive: list[Scalar] = []  # keeps identities unique

    def of(self, node: Scalar) -> float | None:
        """What a number never exceeds; None where it may be infinite or NaN."""
        if id(node) not in self.done:
            self.alive.append(node)
            found = self._of(node)
            self.done[id(node)] = found if found is not None and found <= LARGEST else None
        return self.done[id(node)]

    def _of(self, node: Scalar) -> float | None:
        match node:
            case Literal(value):
                return abs(float(value)) if isinstance(value, (int, float)) and np.isfinite(value) else None
            case Load(operand, _, dtype):
                return self._largest(self.operands[operand], dtype)
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

    def _largest(self, value: Value, dtype: DType) -> float | None:
        if dtype in BYTES:
            return 255.0
        if dtype is DType.int32:
            return 2.0**31
        content = self.constants.get(value)
        if content is None:
            return self.known.get(value)
        if dtype is not DType.float32 or not 0 < np.size(content) <= _MANY:
            return None
        largest = float(np.abs(np.asarray(content, np.float32)).max())
        return largest if np.isfinite(largest) else None
