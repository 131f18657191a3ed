"""Dims as numbers, for one set of sizes: every expression is computed once, however many others contain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.dims import Compound, Dim, Expr, Symbol


class Numbers:
    """A function from dims to their values; KeyError for a symbol without a size."""

    __slots__ = ("_known", "sizes")

    def __init__(self, sizes: Mapping[str, int], known: Mapping[Expr, int] | None = None) -> None:
        """`known` are values of dims for these sizes."""
        self.sizes = dict(sizes)
        self._known: dict[Expr, int] = {} if known is None else dict(known)

    def bind(self, name: str, size: int) -> None:
        """Give a symbol a size; what was computed with another one is forgotten."""
        if self.sizes.get(name) != size:
            if name in self.sizes:
                self._known.clear()
            self.sizes[name] = size

    def __call__(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        known = self._known.get(dim)
        if known is None:
            known = self._known[dim] = self._compute(dim)
        return known

    def parameters(self, values: Sequence[Dim], blocks: int) -> tuple[int, ...]:
        """Those of a launch: 0 if it has no blocks to read them, since a size of 0 may be what they divide by."""
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
