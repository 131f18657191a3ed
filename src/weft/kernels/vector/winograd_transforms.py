"""Winograd transforms: matrices in exact arithmetic, and statements that apply them to vectors.

Along an axis, m outputs of r taps are a product of polynomials, determined by its values at m + r - 2 points and at
infinity. Points after 0 come in opposite pairs, and common terms of a pair are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number, Statement
from weft.ir.target import VectorTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder
from weft.records import dataclass

Matrix = tuple[tuple[Fraction, ...], ...]
# opposite points are neighbours; these have a third of the error of the points 1 and 2
_POINTS: dict[int, tuple[Fraction, ...]] = {
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    5: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
    7: (Fraction(0), *(sign * Fraction(n, 8) for n in (4, 9, 14) for sign in (1, -1))),
}


@dataclass(frozen=True, slots=True)
class Transforms:
    """y = output . ((kernel . g) * (input . d)) along an axis, for `size` outputs."""

    size: int
    input: Matrix
    kernel: Matrix
    output: Matrix


def make_transforms(size: int, taps: int) -> Transforms:
    """Make the transforms that interpolate at some points and at infinity, in exact arithmetic."""
    points = _POINTS[size + taps - 2]
    values, kernel = [], []
    for point in points:
        others = _polynomial([other for other in points if other != point])
        scale = sum(c * point**power for power, c in enumerate(others))
        values.append((*others, Fraction(0)))
        kernel.append(tuple(point**power / scale for power in range(taps)))
    values.append(_polynomial(points))
    kernel.append((*[Fraction(0)] * (taps - 1), Fraction(1)))
    output = [(*(point**power for point in points), Fraction(int(power == size - 1))) for power in range(size)]
    return Transforms(size, tuple(values), tuple(kernel), tuple(output))


def recovery_points(transform: Transforms) -> list[int]:
    """Return the points whose transformed weights determine three taps: 0, two opposite ones, infinity."""
    last = len(transform.kernel) - 1
    return [0, 1, 2, last] if last else [0]


IDENTITY = Transforms(1, ((Fraction(1),),), ((Fraction(1),),), ((Fraction(1),),))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the product of (x - root), constant term first."""
    product = [Fraction(1)]
    for root in roots:
        product = [low - root * high for low, high in zip([Fraction(0), *product], [*product, Fraction(0)])]
    return tuple(product)


class TransformLines:
    """Collects statements for linear combinations of vectors, each in a register."""

    def __init__(self, target: VectorTarget, builder: KernelBuilder) -> None:
        self.target = target
        self.builder = builder
        self.dtype = DType.float32
        self.statements: list[Statement] = []

    def keep(self, value: Code) -> Code:
        defined, register = self.builder.keep("v", value, varying=True)
        self.statements.append(defined)
        return register

    def map_lines(self, axis: int, change: Callable[[list[Code]], list[Code]], tile: Array) -> Array:
        """Apply a function to every line of a tile along an axis."""
        lines = np.moveaxis(tile, axis, -1)
        changed = [change(list(lines[place])) for place in np.ndindex(lines.shape[:-1])]
        result = np.empty((*lines.shape[:-1], len(changed[0])), object)
        for place, line in zip(np.ndindex(lines.shape[:-1]), changed):
            for number, value in enumerate(line):
                at = (*place, number)
                result[at] = value
        return np.moveaxis(result, -1, axis)

    def apply(self, matrix: Matrix, values: list[Code]) -> list[Code]:
        """Compute matrix . values; rows of opposite points share their even and odd parts."""
        results: dict[int, Code] = {}
        for number, row in enumerate(matrix):
            if number in results:
                continue
            partner = next((n for n in range(number + 1, len(matrix)) if _is_mirrored(row, matrix[n])), None)
            if partner is None:
                results[number] = self.combine(row, values)
            else:
                even = self.combine([c if power % 2 == 0 else Fraction(0) for power, c in enumerate(row)], values)
                odd = self.combine([c if power % 2 else Fraction(0) for power, c in enumerate(row)], values)
                results[number] = self.keep(Call("add", (even, odd), self.dtype))
                results[partner] = self.keep(Call("subtract", (even, odd), self.dtype))
        return [results[number] for number in range(len(matrix))]

    def pair_columns(self, matrix: Matrix, values: list[Code]) -> tuple[Matrix, list[Code]]:
        """Rewrite a product with the sums and differences of values at opposite points."""
        paired_values = list(values)
        columns = [list(column) for column in zip(*matrix)]
        for first in range(1, len(columns) - 2, 2):
            plus = self.keep(Call("add", (values[first], values[first + 1]), self.dtype))
            minus = self.keep(Call("subtract", (values[first], values[first + 1]), self.dtype))
            paired_values[first], paired_values[first + 1] = plus, minus
            point = columns[first]
            columns[first] = [c if power % 2 == 0 else Fraction(0) for power, c in enumerate(point)]
            columns[first + 1] = [c if power % 2 else Fraction(0) for power, c in enumerate(point)]
        return tuple(zip(*columns)), paired_values

    def transform_back(self, matrix: Matrix, values: list[Code]) -> list[Code]:
        """Compute matrix . values, for values at points that come in opposite pairs."""
        return self.apply(*self.pair_columns(matrix, values))

    def recover_taps(self, transform: Transforms, values: list[Code]) -> list[Code]:
        """Recover the taps along an axis from transformed weights at the points `recovery_points`.

        The outer taps are exact to about two roundings. The middle one is a difference between opposite points: its
        error is about two roundings of the largest tap.
        """
        if len(values) == 1:
            return values
        first, plus, minus, last = values
        middle = self.keep(Call("subtract", (plus, minus), self.dtype))
        first = self.keep(Call("multiply", (self.number(1 / transform.kernel[0][0]), first), self.dtype))
        middle = self.keep(Call("multiply", (self.number(1 / transform.kernel[1][1] / 2), middle), self.dtype))
        return [first, middle, last]

    def combine(self, factors: Sequence[Fraction], values: Sequence[Code]) -> Code:
        """Build a sum of products, starting with a factor of 1 if there is one."""
        terms = sorted(((f, v) for f, v in zip(factors, values) if f), key=lambda term: term[0] != 1)
        (first, start), *rest = terms
        total = start if first == 1 else self.keep(Call("multiply", (self.number(first), start), self.dtype))
        for factor, value in rest:
            if abs(factor) == 1:
                total = self.keep(Call("add" if factor == 1 else "subtract", (total, value), self.dtype))
            else:
                total = self.keep(multiply_add(self.target, self.number(factor), value, total))
        return total

    def number(self, value: Fraction) -> Number:
        return Number(float(value), self.dtype)


def _is_mirrored(row: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    return all(b == (a if power % 2 == 0 else -a) for power, (a, b) in enumerate(zip(row, other)))
