"""Analyse how index arithmetic and expressions depend on the axes of their domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Expr
from weft.ir.scalar import Apply, FlatLoad, Index, Literal, Scalar, rebuild, walk
from weft.ir.types import Shape


def stride_along(value: Dim, position: int) -> Dim:
    """Return the coefficient of an axis in an offset that is linear in it."""
    total: Dim = 0
    for monomial, coefficient in value.terms if isinstance(value, Expr) else ():
        rest = [atom for atom in monomial if not (isinstance(atom, Axis) and atom.position == position)]
        if len(rest) < len(monomial):
            term: Dim = coefficient
            for atom in rest:
                term = term * dims.from_atom(atom)
            total = total + term
    return total


def without_axis(value: Dim, position: int) -> Dim:
    """Evaluate the value at position 0 of an axis."""

    def replace(atom: dims.Symbol | Axis) -> Dim:
        return 0 if isinstance(atom, Axis) and atom.position == position else dims.from_atom(atom)

    return dims.substitute(value, replace)


def find_nonlinear_axes(value: Dim) -> set[int]:
    """Find axes inside compound atoms (quotients, remainders, extremes) or multiplied with each other."""
    if isinstance(value, int):
        return set()
    positions: set[int] = set()
    for monomial, _ in value.terms:
        linear = [atom for atom in monomial if isinstance(atom, Axis)]
        if len(linear) > 1:
            positions |= {atom.position for atom in linear}
        for atom in monomial:
            if not isinstance(atom, Axis):
                inner = dims.atoms(dims.from_atom(atom))
                positions |= {nested.position for nested in inner if isinstance(nested, Axis)}
    return positions


def find_axes(scalar: Scalar) -> set[int]:
    """Find every axis that an expression depends on."""
    positions: set[int] = set()
    for node in walk(scalar):
        if isinstance(node, (Index, FlatLoad)):
            value = node.value if isinstance(node, Index) else node.offset
            positions |= {atom.position for atom in dims.atoms(value) if isinstance(atom, Axis)}
    return positions


def substitute_axes(scalar: Scalar, axes: Mapping[int, Dim] | Sequence[Dim]) -> Scalar:
    """Replace the axes of an expression."""

    def replace(atom: dims.Symbol | Axis) -> Dim:
        return axes[atom.position] if isinstance(atom, Axis) else dims.from_atom(atom)

    return rebuild(scalar, atom=replace)


def find_index_comparisons(condition: Scalar) -> list[tuple[Dim, str, Dim]]:
    """Find the index comparisons (left, relation, right) that a condition implies."""
    match condition:
        case Apply("logical_and", (left, right)):
            return find_index_comparisons(left) + find_index_comparisons(right)
        case Apply(relation, (Index(left), Index(right))):
            return [(left, relation, right)]
        case Apply(relation, (Index(left), Literal(int(right)))):
            return [(left, relation, right)]
        case _:
            return []


def axes_of_shape(shape: Shape) -> tuple[Dim, ...]:
    return tuple(dims.axis(axis, size) for axis, size in enumerate(shape))
