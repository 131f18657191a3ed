"""Evaluate dims for one set of sizes, computing every subexpression once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.dims import Compound, Dim, Expr, Symbol


class DimEvaluator:
    """A callable from dims to their values; it raises KeyError for a symbol without a size."""

    __slots__ = ("_values", "sizes")

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self._values: dict[Expr, int] = {}

    def bind(self, name: str, size: int) -> None:
        """Set the size of a symbol; a changed size clears the computed values."""
        if self.sizes.get(name) != size:
            if name in self.sizes:
                self._values.clear()
            self.sizes[name] = size

    def __call__(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        value = self._values.get(dim)
        if value is None:
            value = self._values[dim] = self._compute(dim)
        return value

    def parameters(self, values: Sequence[Dim], blocks: int) -> tuple[int, ...]:
        """Evaluate the parameters of a launch; without blocks they are 0, since they may divide by a size of 0."""
        return tuple(map(self, values)) if blocks else (0,) * len(values)

    def _compute(self, dim: Expr) -> int:
        total = 0
        for monomial, coefficient in dim.terms:
            term = coefficient
            for atom in monomial:
                if isinstance(atom, Compound):
                    term *= self._combine(atom)
                elif isinstance(atom, Symbol):
                    term *= self.sizes[atom.name]
                else:
                    raise KeyError(str(atom))
            total += term
        return total

    def _combine(self, atom: Compound) -> int:
        left, right = self(atom.left), self(atom.right)
        match atom.operation:
            case "//":
                return left // right
            case "%":
                return left % right
            case "min":
                return min(left, right)
            case _:
                return max(left, right)
